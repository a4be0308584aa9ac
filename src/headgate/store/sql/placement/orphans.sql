-- Streams whose owner has no row any more. There should be none; if there are, nobody else would ever free them.
SELECT id, owner, run, epoch, edits, n, position, version, source_identity, sink_identity, rests, home
FROM headgate.stream s WHERE owner IS NOT NULL AND NOT EXISTS (SELECT FROM headgate.node n WHERE n.id = s.owner)
ORDER BY id FOR UPDATE SKIP LOCKED
