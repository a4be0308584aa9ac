-- A rejected version is tried again after a restart or a changed secret.
UPDATE headgate.datasource_version SET status = 'published', reason = NULL
WHERE datasource = ANY ($1::uuid[]) AND status = 'rejected'
