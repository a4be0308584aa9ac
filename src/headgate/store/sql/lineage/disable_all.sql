UPDATE headgate.datasource SET enabled = false, revision = $1 WHERE NOT deleted
