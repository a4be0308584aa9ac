SELECT * FROM headgate.datasource WHERE name = $1 AND NOT deleted
