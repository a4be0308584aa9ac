-- Streams that no node runs, failed ones first. Each is reported by one node: the one whose word is the last, if it is
-- still there, else the oldest. Streams that programs push come and go, so of those only the failed ones are listed. One
-- that was dealt everything away keeps what it has counted, because a sum must not fall.
SELECT s.id AS stream, d.name AS datasource, d.id AS datasource_id, coalesce(s.label, s.index::text) AS part, s.label IS NOT NULL AS is_pushed,
       s.label IS NOT NULL OR s.index < d.dealt AS is_dealt, st.worker_status, st.detail, st.metrics,
       d.enabled AND NOT d.paused AS is_on,
       d.quarantine IS NOT NULL AS is_quarantined,
       s.records_read, s.records_written, s.records_filtered, s.records_dead_lettered, s.records_skipped
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource AND NOT d.deleted
JOIN headgate.datasource_state st ON st.stream = s.id
LEFT JOIN headgate.node n ON n.id = st.node AND NOT n.ended
WHERE s.owner IS NULL
  AND CASE WHEN s.label IS NULL THEN s.index < d.dealt OR s.records_read > 0 ELSE st.worker_status = 'ERROR' END
  AND coalesce(n.id, (SELECT o.id FROM headgate.node o WHERE NOT o.ended ORDER BY o.started_at, o.id LIMIT 1)) = $1
ORDER BY st.worker_status = 'ERROR' OR d.quarantine IS NOT NULL DESC, s.id
LIMIT $2
