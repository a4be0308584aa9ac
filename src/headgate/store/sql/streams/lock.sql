SELECT id, owner, run, epoch, generation, commits, position, version, source_identity, sink_identity, rests, settled
FROM headgate.stream WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
