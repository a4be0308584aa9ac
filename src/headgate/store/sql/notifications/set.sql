UPDATE headgate.notifications SET document = $1::json, version = version + 1, author = $2, changed_at = now()
WHERE $3::bigint IS NULL OR version = $3 RETURNING version
