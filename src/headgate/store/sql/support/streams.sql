-- A position may hold a value of a record, so only its length is told.
SELECT d.name || ':' || coalesce(s.label, s.index::text) AS name, n.name AS node, s.epoch, s.generation, s.commits,
       length(s.position::text) AS position_bytes, s.settled, s.transactional, st.worker_status, st.detail, st.version,
       st.error, st.changed_at, s.records_read, s.records_written, s.records_filtered, s.records_dead_lettered
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
LEFT JOIN headgate.datasource_state st ON st.stream = s.id
LEFT JOIN headgate.node n ON n.id = s.owner
ORDER BY d.name, s.index, s.label LIMIT $1
