-- A limited number of rows and of bytes, but always the next one.
SELECT id, received_at_s, headers, body
FROM (
    SELECT id, extract(epoch FROM received_at)::float8 AS received_at_s, headers, body,
           sum(octet_length(body)) OVER (ORDER BY id) - octet_length(body) AS bytes_before
    FROM (SELECT * FROM headgate.inbox WHERE datasource = $1 AND id > $2 ORDER BY id LIMIT $3) AS next
) AS summed
WHERE bytes_before < $4 OR bytes_before = 0
ORDER BY id
