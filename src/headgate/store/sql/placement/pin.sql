-- Nothing, if the node has left meanwhile.
INSERT INTO headgate.wish (stream, node, pinned)
SELECT $1, n.id, true FROM headgate.node n WHERE n.id = $2 AND NOT n.ended FOR KEY SHARE
ON CONFLICT (stream) DO UPDATE SET node = excluded.node, pinned = true, stepping = false
RETURNING node
