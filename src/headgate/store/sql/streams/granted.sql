-- What this node has been granted and does not run yet, and what it was told to step down from. While a node has one of
-- its streams, a datasource is not dealt again.
SELECT s.id, s.datasource, s.index, d.dealt, s.epoch, s.settled, false AS steps_down FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
WHERE s.owner = $1 AND s.run IS NULL AND s.label IS NULL
UNION ALL
SELECT s.id, s.datasource, s.index, d.dealt, s.epoch, s.settled, true FROM headgate.wish w
JOIN headgate.stream s ON s.id = w.stream AND s.owner = $1
JOIN headgate.datasource d ON d.id = s.datasource
WHERE w.stepping AND w.node <> $1
ORDER BY steps_down DESC, id
