UPDATE headgate.datasource SET dealt = $3, dealing = false, deal_after = NULL, revision = $2 WHERE id = $1
