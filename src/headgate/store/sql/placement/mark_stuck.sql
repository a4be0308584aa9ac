INSERT INTO headgate.unable (stream, node, wanted_key, reason)
SELECT s.id, $2, headgate.wanted_key(d, s.index), 'it did not step down in time'
FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource
WHERE s.id = $1 AND EXISTS (SELECT FROM headgate.node n WHERE n.id = $2)
ON CONFLICT (stream, node) DO UPDATE SET wanted_key = excluded.wanted_key, reason = excluded.reason, at = now()
