-- The newest payloads, oldest first, in a limited number of bytes.
SELECT id, received_at_s, headers, body
FROM (
    SELECT id, extract(epoch FROM received_at)::float8 AS received_at_s, headers, body,
           sum(octet_length(body)) OVER (ORDER BY id DESC) - octet_length(body) AS bytes_after
    FROM (SELECT * FROM headgate.inbox WHERE datasource = $1 ORDER BY id DESC LIMIT $2) AS newest
) AS summed
WHERE bytes_after < $3 OR bytes_after = 0
ORDER BY id
