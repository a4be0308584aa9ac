UPDATE headgate.datasource SET deleted = true, enabled = false, revision = $2 WHERE id = $1
