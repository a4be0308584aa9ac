SELECT d.id, d.name, d.revision, d.enabled, d.deleted, d.published_version, d.running_version, d.mark, d.quarantine,
       v.status AS published_status
FROM headgate.datasource d
LEFT JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
WHERE d.revision > $1
ORDER BY d.revision
