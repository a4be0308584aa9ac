SELECT * FROM headgate.datasource WHERE id = $1 AND NOT deleted
