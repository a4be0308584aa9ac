-- Nobody's grant counts any more, and what the sinks have is not known. Those that had an owner get a line of history.
WITH owned AS (
    SELECT id, (SELECT name FROM headgate.node n WHERE n.id = s.owner) AS node FROM headgate.stream s WHERE owner IS NOT NULL
), freed AS (
    UPDATE headgate.stream SET owner = NULL, run = NULL, epoch = greatest(epoch + 1, $1), settled = sink_identity IS NULL
    RETURNING id, epoch, generation, commits, position
)
INSERT INTO headgate.stream_history (stream, kind, actor, epoch, generation, commits, position)
SELECT f.id, 'revoked', coalesce(o.node, 'headgate'), f.epoch, f.generation, f.commits, f.position
FROM freed f JOIN owned o ON o.id = f.id
