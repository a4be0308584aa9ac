-- Nobody's grant counts any more, and what the sinks have is not known. A stream whose owner may still write unfenced
-- waits for that one's end (`core.lease`). Those that had an owner get a line of history.
WITH owned AS (
    SELECT id, (SELECT name FROM headgate.node n WHERE n.id = s.owner) AS node FROM headgate.stream s
    WHERE owner IS NOT NULL AND (run IS NULL OR transactional)
), raised AS (
    UPDATE headgate.stream SET epoch = greatest(epoch + 1, $1), settled = sink_identity IS NULL,
        owner = CASE WHEN run IS NULL OR transactional THEN NULL ELSE owner END,
        run = CASE WHEN transactional THEN NULL ELSE run END
    RETURNING id, epoch, generation, commits, position
)
INSERT INTO headgate.stream_history (stream, kind, actor, epoch, generation, commits, position)
SELECT r.id, 'revoked', coalesce(o.node, 'headgate'), r.epoch, r.generation, r.commits, r.position
FROM raised r JOIN owned o ON o.id = r.id
