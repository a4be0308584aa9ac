SELECT id, extract(epoch FROM received_at)::float8 AS received_at_s, headers, body
FROM headgate.inbox WHERE datasource = $1 AND id > $2 ORDER BY id LIMIT $3
