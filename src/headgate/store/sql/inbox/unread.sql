-- What waits in each inbox behind its stream's position, or behind what its source has acknowledged ($3, $4), which is
-- newer; of streams whose last run read an inbox, or that never ran. A few are counted; beyond $5 the share of ids that lie ahead says how many, since a full inbox has a million.
SELECT i.datasource, first.oldest_at_s,
       CASE WHEN few.rows < $5 THEN few.rows ELSE greatest(few.rows, (i.rows * span.ahead)::bigint) END AS records,
       CASE WHEN few.rows < $5 THEN few.bytes ELSE greatest(few.bytes, (i.bytes * span.ahead)::bigint) END AS bytes
FROM headgate.inbox_size i
JOIN headgate.stream s ON s.datasource = i.datasource AND s.index = 0 AND coalesce(s.source_identity, $2) = $2
LEFT JOIN unnest($3::uuid[], $4::bigint[]) AS acked (datasource, id) ON acked.datasource = i.datasource
CROSS JOIN LATERAL (
    SELECT greatest(CASE WHEN s.position #>> '{}' ~ '^[0-9]{1,18}$' THEN (s.position #>> '{}')::bigint END, acked.id, 0) AS id
) AS here
CROSS JOIN LATERAL (
    SELECT count(*) AS rows, coalesce(sum(size), 0)::bigint AS bytes FROM (
        SELECT octet_length(body) AS size FROM headgate.inbox WHERE datasource = i.datasource AND id > here.id ORDER BY id LIMIT $5
    ) AS next
) AS few
LEFT JOIN LATERAL (
    SELECT extract(epoch FROM received_at)::float8 AS oldest_at_s FROM headgate.inbox
    WHERE datasource = i.datasource AND id > here.id ORDER BY id LIMIT 1
) AS first ON true
CROSS JOIN LATERAL (
    SELECT (max(id) - here.id)::float8 / greatest(max(id) - least(min(id) - 1, here.id), 1) AS ahead
    FROM headgate.inbox WHERE datasource = i.datasource
) AS span
WHERE $1::uuid IS NULL OR i.datasource = $1
