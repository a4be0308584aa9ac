SELECT datasource FROM headgate.datasource_version WHERE status = 'draft'
