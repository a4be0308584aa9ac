SELECT DISTINCT side ->> 'type' AS name FROM headgate.datasource d
JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number IN (d.published_version, d.running_version)
CROSS JOIN LATERAL unnest(ARRAY[v.source, v.sink]) AS side
WHERE d.enabled AND NOT d.deleted
