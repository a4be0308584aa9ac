SELECT d.id, d.name, d.revision, d.enabled, d.deleted, d.published_version, d.running_version, d.restarts, d.is_to_run,
       d.dealt, d.dealing, d.paused,
       p.status AS published_status, t.source ->> 'type' AS source_type
FROM headgate.datasource d
LEFT JOIN headgate.datasource_version p ON p.datasource = d.id AND p.number = d.published_version
LEFT JOIN headgate.datasource_version t
    ON t.datasource = d.id AND t.number = CASE WHEN p.status = 'rejected' THEN d.running_version ELSE p.number END
WHERE d.revision > $1
ORDER BY d.revision
