-- What the streams have done that `list` leaves out: every stream is in one of the two. What was written in the hour
-- before a stream came to rest counts for an hour at most.
SELECT s.datasource,
       sum(s.records_read)::bigint AS records_read,
       sum(s.records_written)::bigint AS records_written,
       sum(s.records_filtered)::bigint AS records_filtered,
       sum(s.records_dead_lettered)::bigint AS records_dead_lettered,
       sum(s.records_skipped)::bigint AS records_skipped,
       max(st.last_record_at_s) AS last_record_at_s,
       coalesce(sum((st.metrics ->> 'last_hour')::bigint)
           FILTER (WHERE st.last_record_at_s > extract(epoch FROM now()) - 3600), 0)::bigint AS last_hour
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource AND NOT d.deleted
LEFT JOIN headgate.datasource_state st ON st.stream = s.id
WHERE ($1::uuid[] IS NULL OR s.datasource = ANY ($1))
  AND (st.stream IS NULL
       OR CASE WHEN s.label IS NULL THEN s.index >= d.dealt ELSE NOT $2 AND s.owner IS NULL AND st.worker_status <> 'ERROR' END)
GROUP BY s.datasource
