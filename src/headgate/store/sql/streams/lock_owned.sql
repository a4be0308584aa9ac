SELECT id, owner, run, epoch, generation, commits, position, version, source_identity, sink_identity, rests, settled, transactional,
       records_read, records_written, records_filtered, records_dead_lettered, records_skipped
FROM headgate.stream WHERE owner = $1 ORDER BY id FOR UPDATE
