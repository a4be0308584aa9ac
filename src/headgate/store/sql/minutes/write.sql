-- The totals of these datasources as their streams have them, and the sign that a node has written. Backlogs are what the
-- nodes that run the streams have said of them, unless the caller knows better.
INSERT INTO headgate.minute AS m (datasource, minute, read, written, dead_lettered, bytes, backlog, lag_s)
SELECT u.datasource, $1::timestamptz, sum(s.records_read), sum(s.records_written), sum(s.records_dead_lettered), u.bytes,
       coalesce(u.backlog, sum((st.metrics #>> '{backlog,records}')::bigint)), u.lag_s
FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::real[]) AS u (datasource, bytes, backlog, lag_s)
JOIN headgate.stream s ON s.datasource = u.datasource
LEFT JOIN headgate.datasource_state st ON st.stream = s.id AND s.owner IS NOT NULL
GROUP BY u.datasource, u.bytes, u.backlog, u.lag_s
UNION ALL
SELECT '00000000-0000-0000-0000-000000000000', $1, 0, 0, 0, 0, NULL, 0
ORDER BY 1
ON CONFLICT (datasource, minute) DO UPDATE SET
    read = greatest(m.read, excluded.read), written = greatest(m.written, excluded.written),
    dead_lettered = greatest(m.dead_lettered, excluded.dead_lettered), bytes = m.bytes + excluded.bytes,
    backlog = coalesce(excluded.backlog, m.backlog), lag_s = greatest(m.lag_s, excluded.lag_s)
