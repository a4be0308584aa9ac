-- A datasource that programs push to has a numbered stream as well, which nobody runs and nobody needs to see; nor do
-- they need to see streams that were dealt everything away.
SELECT s.*, d.name, n.name AS node FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
LEFT JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
LEFT JOIN headgate.node n ON n.id = s.owner
WHERE NOT d.deleted AND (s.index IS NULL OR s.index < d.dealt)
  AND NOT (s.label IS NULL AND s.epoch = 0 AND coalesce(v.source ->> 'type', '') = $1)
ORDER BY d.name, s.index, s.label
