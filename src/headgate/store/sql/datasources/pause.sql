UPDATE headgate.datasource SET enabled = true, paused = true, revision = $2 WHERE id = $1
