UPDATE headgate.datasource_version SET status = 'superseded'
WHERE datasource = $1 AND status IN ('published', 'rejected')
