UPDATE headgate.datasource SET dealing = true, revision = $2 WHERE id = $1
