-- What the sink has durably, though the registry may not know its position yet.
WITH gone AS (
    DELETE FROM headgate.inbox i
    USING (
        SELECT datasource, id FROM headgate.inbox
        WHERE datasource = $1 AND id <= $2 AND received_at <= now() - make_interval(secs => $3)
        ORDER BY id LIMIT $4
    ) AS old
    WHERE i.datasource = old.datasource AND i.id = old.id
    RETURNING octet_length(i.body) AS size
), shrunk AS (
    UPDATE headgate.inbox_size
    SET rows = rows - (SELECT count(*) FROM gone), bytes = bytes - (SELECT coalesce(sum(size), 0) FROM gone)
    WHERE datasource = $1
)
SELECT count(*) FROM gone
