-- What they are and how they stand. Nothing of what their documents say but the two connectors.
SELECT d.id, d.name, d.enabled, d.paused, d.published_version, d.running_version, v.status AS published_status,
       v.source->>'type' AS source, v.sink->>'type' AS sink, d.quarantine, v.reason, d.streams, d.dealt, d.created_at
FROM headgate.datasource d
LEFT JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
WHERE NOT d.deleted
ORDER BY d.name LIMIT $1
