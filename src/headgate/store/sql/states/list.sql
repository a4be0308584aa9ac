-- What has ended is stopping until its holder has given it back, so that one shown as `STOPPED` can be edited or started.
-- Streams of programs that have gone are listed with $2 only: there may be thousands, and `others` sums them up.
SELECT st.*, s.index, s.label, n.name AS node_name, n.beat AS heartbeat,
       s.records_read, s.records_written, s.records_filtered, s.records_dead_lettered, s.records_skipped,
       st.worker_status = 'STOPPED' AND s.owner IS NOT NULL AND s.epoch = st.epoch AS is_stopping
FROM headgate.datasource_state st
JOIN headgate.stream s ON s.id = st.stream
JOIN headgate.datasource d ON d.id = st.datasource
LEFT JOIN headgate.node n ON n.id = st.node
WHERE ($1::uuid[] IS NULL OR st.datasource = ANY ($1))
  AND CASE WHEN s.label IS NULL THEN s.index < d.dealt ELSE $2 OR s.owner IS NOT NULL OR st.worker_status = 'ERROR' END
ORDER BY st.datasource, s.index, s.label
