UPDATE headgate.datasource_version SET status = $3, reason = $4
WHERE datasource = $1 AND number = $2 AND status <> $3
