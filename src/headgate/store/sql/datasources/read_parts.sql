SELECT parts FROM headgate.datasource WHERE id = $1
