-- Held, so that a node which is ended meanwhile finds what was granted to it, and takes that down with it.
SELECT id, draining FROM headgate.node WHERE NOT ended ORDER BY started_at, id FOR KEY SHARE
