UPDATE headgate.datasource_version
SET source = $2, mapping = $3, sink = $4, options = $5, secrets = $6, hash = $7, author = $8, created_at = now()
WHERE datasource = $1 AND status = 'draft'
RETURNING number
