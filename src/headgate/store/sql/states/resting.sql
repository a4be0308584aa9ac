-- Streams that no node runs, failed ones first. Each is reported by one node: the one whose word is the last, if it is
-- still there, else the oldest. Streams that programs push come and go, so of those only the failed ones are listed.
SELECT d.name AS datasource, coalesce(s.label, s.index::text) AS part, st.worker_status, st.detail, st.metrics, d.enabled,
       d.quarantine IS NOT NULL AS is_quarantined
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource AND NOT d.deleted AND (s.index IS NULL OR s.index < d.dealt)
JOIN headgate.datasource_state st ON st.stream = s.id
LEFT JOIN headgate.node n ON n.id = st.node
WHERE s.owner IS NULL AND (s.label IS NULL OR st.worker_status = 'ERROR')
  AND coalesce(n.id, (SELECT o.id FROM headgate.node o ORDER BY o.started_at, o.id LIMIT 1)) = $1
ORDER BY st.worker_status = 'ERROR' OR d.quarantine IS NOT NULL DESC, s.id
LIMIT $2
