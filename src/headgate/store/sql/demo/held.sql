-- Streams of deleted datasources of these names that are not purged yet.
SELECT count(*) FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
WHERE d.deleted AND d.name = ANY($1::text[])
