-- All that programs have pushed, of streams in use and at rest alike: a sum that never falls. The oldest node reports it.
SELECT d.name AS datasource,
       sum(s.records_read)::bigint AS records_read,
       sum(s.records_written)::bigint AS records_written,
       sum(s.records_filtered)::bigint AS records_filtered,
       sum(s.records_dead_lettered)::bigint AS records_dead_lettered,
       sum(s.records_skipped)::bigint AS records_skipped
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource AND NOT d.deleted
WHERE s.label IS NOT NULL AND (SELECT o.id FROM headgate.node o WHERE NOT o.ended ORDER BY o.started_at, o.id LIMIT 1) = $1
GROUP BY d.name
