SELECT id, owner, run, epoch, generation, commits, position, version, source_identity, sink_identity, rests, settled, transactional,
       records_read, records_written, records_filtered, records_dead_lettered, records_skipped, source_mark, sink_mark
FROM headgate.stream WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
