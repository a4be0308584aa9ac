UPDATE headgate.datasource SET enabled = false, paused = false, revision = $1 WHERE NOT deleted
