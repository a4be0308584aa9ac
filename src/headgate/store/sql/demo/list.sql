-- Streams whose rows are yet to be removed from the demo's tables.
SELECT DISTINCT r.stream FROM headgate.removal r
JOIN headgate.datasource d ON d.id = r.datasource
WHERE d.deleted AND d.name = ANY($1::text[])
