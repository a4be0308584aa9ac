SELECT * FROM headgate.datasource_version WHERE datasource = $1 AND number = $2
