SELECT * FROM headgate.datasource WHERE NOT deleted ORDER BY name
