-- Only what the registry's own position has passed, and only after it has been kept for a while.
WITH gone AS (
    DELETE FROM headgate.inbox i
    USING (
        SELECT i.datasource, i.id
        FROM headgate.stream s
        CROSS JOIN LATERAL (
            SELECT datasource, id FROM headgate.inbox
            WHERE datasource = s.datasource AND id <= (s.position #>> '{}')::bigint
              AND received_at < now() - make_interval(secs => $1)
            ORDER BY id LIMIT $2
        ) AS i
        WHERE s.index = 0 AND json_typeof(s.position) = 'number'
          AND EXISTS (SELECT FROM headgate.inbox_size z WHERE z.datasource = s.datasource AND z.rows > 0)
    ) AS old
    WHERE i.datasource = old.datasource AND i.id = old.id
    RETURNING i.datasource, octet_length(i.body) AS size
), sums AS (
    SELECT datasource, count(*) AS rows, sum(size) AS bytes FROM gone GROUP BY datasource
), shrunk AS (
    UPDATE headgate.inbox_size z SET rows = z.rows - sums.rows, bytes = z.bytes - sums.bytes
    FROM sums WHERE z.datasource = sums.datasource
)
SELECT coalesce(sum(rows), 0) FROM sums
