-- Streams whose owner has no row any more. There should be none; if there are, nobody else would ever free them.
SELECT id, owner, run, epoch, generation, commits, position, version, source_identity, sink_identity, rests, settled, transactional,
       records_read, records_written, records_filtered, records_dead_lettered, records_skipped
FROM headgate.stream s WHERE owner IS NOT NULL AND NOT EXISTS (SELECT FROM headgate.node commits WHERE commits.id = s.owner)
ORDER BY id FOR UPDATE SKIP LOCKED
