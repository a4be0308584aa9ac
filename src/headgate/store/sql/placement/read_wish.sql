SELECT w.node AS id, n.name AS node, w.pinned FROM headgate.wish w JOIN headgate.node n ON n.id = w.node
WHERE w.stream = $1
