SELECT parts FROM headgate.datasource WHERE id = $1 FOR NO KEY UPDATE
