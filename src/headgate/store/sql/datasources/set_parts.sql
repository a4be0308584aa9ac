UPDATE headgate.datasource SET parts = $2 WHERE id = $1
