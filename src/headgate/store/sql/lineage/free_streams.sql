-- Nobody's grant counts any more, and what the sinks have is not known. What no sink fences goes to the ghost, $2, because
-- a node of the lost time may still write it: it is free when the ghost's lease is over. Those that had an owner get
-- a line of history.
WITH owned AS (
    SELECT id, (SELECT name FROM headgate.node n WHERE n.id = s.owner) AS node FROM headgate.stream s WHERE owner IS NOT NULL
), raised AS (
    UPDATE headgate.stream SET epoch = greatest(epoch + 1, $1), settled = sink_identity IS NULL,
        owner = CASE WHEN NOT transactional THEN $2::uuid END, run = CASE WHEN NOT transactional THEN $2::uuid END
    RETURNING id, epoch, generation, commits, position
)
INSERT INTO headgate.stream_history (stream, kind, actor, epoch, generation, commits, position)
SELECT r.id, 'revoked', coalesce(o.node, 'headgate'), r.epoch, r.generation, r.commits, r.position
FROM raised r JOIN owned o ON o.id = r.id
