SELECT t.number, t.name, t.target, t.state, t.job, t.top, t.at, t.planned, t.size, t.fixed, t.listed, t.error, t.started_at,
       t.ended_at, c.rows, c.bytes, c.chunks, c.done, c.failed, c.leased, c.waiting
FROM headgate.dump_table t
LEFT JOIN LATERAL (
    SELECT coalesce(sum(rows), 0)::bigint AS rows, coalesce(sum(bytes), 0)::bigint AS bytes, count(*) AS chunks,
           count(*) FILTER (WHERE state = 'done') AS done, count(*) FILTER (WHERE state = 'failed') AS failed,
           count(*) FILTER (WHERE state = 'leased') AS leased, count(*) FILTER (
               WHERE state = 'planned' AND (until IS NULL OR until <= now()) AND (t.listed IS NULL OR number = ANY (t.listed))
           ) AS waiting
    FROM headgate.dump_chunk WHERE dump = t.dump AND "table" = t.number
) c ON true
WHERE t.dump = $1 ORDER BY t.number
