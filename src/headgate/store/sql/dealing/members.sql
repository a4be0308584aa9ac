SELECT s.datasource, s.id, s.index, s.owner, s.run, s.epoch, s.generation, s.commits, s.position, s.version, s.source_identity,
       s.sink_identity, s.rests, s.settled, s.transactional, s.records_read, s.records_written, s.records_filtered, s.records_dead_lettered, s.records_skipped,
       s.source_mark, s.sink_mark, coalesce(st.worker_status = 'RUNNING' AND st.epoch = s.epoch, false) AS is_running
FROM headgate.stream s LEFT JOIN headgate.datasource_state st ON st.stream = s.id
WHERE s.datasource = ANY ($1::uuid[]) AND s.label IS NULL ORDER BY s.id
