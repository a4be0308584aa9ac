-- What this node has been granted and does not run yet, and what it was told to step down from. While a node has one of
-- its streams, a datasource is not dealt again.
SELECT s.id, s.datasource, s.index, d.dealt, s.epoch, s.settled, false AS steps_down, st.metrics AS reported,
       s.records_read, s.records_written, s.records_filtered, s.records_dead_lettered, s.records_skipped
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
LEFT JOIN headgate.datasource_state st ON st.stream = s.id
WHERE s.owner = $1 AND s.run IS NULL AND s.label IS NULL
UNION ALL
SELECT s.id, s.datasource, s.index, d.dealt, s.epoch, s.settled, true, NULL,
       s.records_read, s.records_written, s.records_filtered, s.records_dead_lettered, s.records_skipped
FROM headgate.wish w
JOIN headgate.stream s ON s.id = w.stream AND s.owner = $1
JOIN headgate.datasource d ON d.id = s.datasource
WHERE w.stepping AND w.node <> $1
ORDER BY steps_down DESC, id
