UPDATE headgate.datasource_version SET status = 'rejected', reason = $3
WHERE datasource = $1 AND number = $2 AND status = 'published'
