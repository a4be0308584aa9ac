-- Datasources whose published or running version refers to the secret.
SELECT DISTINCT d.id, d.name
FROM headgate.datasource d
JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number IN (d.published_version, d.running_version)
WHERE NOT d.deleted AND v.secrets @> ARRAY[$1::text]
ORDER BY d.name
