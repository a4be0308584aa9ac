-- Dumps with what they have done, newest first; or the one whose id begins like $1.
SELECT d.id, d.source, d.target, d.options, d.status, d.wanted, d.rate, d.place, d.spread, d.epoch, d.process, d.fuzzy,
       d.error, d.left_behind, d.actor, d.created_at, d.ended_at, d.datasource AS datasource_id, s.name AS datasource,
       coalesce(d.until > now(), false) AS is_run,
       t.tables, t.finished, t.expected_rows, t.expected_bytes, c.rows, c.bytes, c.chunks, c.done, c.failed
FROM headgate.dump d LEFT JOIN headgate.datasource s ON s.id = d.datasource
LEFT JOIN LATERAL (
    SELECT count(*) AS tables, count(*) FILTER (WHERE state = 'done') AS finished,
           CASE WHEN bool_and(job #>> '{job,source,rows}' IS NOT NULL)
                THEN sum((job #>> '{job,source,rows}')::bigint)::bigint END AS expected_rows,
           CASE WHEN bool_and(job #>> '{job,source,size}' IS NOT NULL)
                THEN sum((job #>> '{job,source,size}')::bigint)::bigint END AS expected_bytes
    FROM headgate.dump_table WHERE dump = d.id
) t ON true
LEFT JOIN LATERAL (
    SELECT coalesce(sum(rows), 0)::bigint AS rows, coalesce(sum(bytes), 0)::bigint AS bytes, count(*) AS chunks,
           count(*) FILTER (WHERE state = 'done') AS done, count(*) FILTER (WHERE state = 'failed') AS failed
    FROM headgate.dump_chunk WHERE dump = d.id
) c ON true
WHERE $1::text IS NULL OR d.id::text LIKE $1 || '%'
ORDER BY d.created_at DESC, d.id LIMIT $2
