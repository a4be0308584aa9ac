SELECT id, owner, run, epoch, edits, n, position, version, source_identity, sink_identity, rests, home
FROM headgate.stream WHERE id = ANY ($1::uuid[])
