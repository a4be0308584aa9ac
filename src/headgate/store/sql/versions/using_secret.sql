-- Who refers to a secret: drafts, and the versions that are published or have proved themselves; and deleted datasources
-- whose sinks are yet to be cleaned with it.
SELECT d.id, d.name, v.number, CASE WHEN d.deleted THEN 'deleted' ELSE v.status END AS status,
       EXISTS (SELECT FROM headgate.stream s WHERE s.datasource = d.id AND s.version = v.number AND s.run IS NOT NULL)
           AND NOT d.deleted AS is_running
FROM headgate.datasource d
JOIN headgate.datasource_version v ON v.datasource = d.id
WHERE v.secrets @> ARRAY[$1::text] AND CASE
    WHEN NOT d.deleted THEN v.status = 'draft' OR v.number IN (d.published_version, d.running_version)
    ELSE v.status <> 'draft' AND strpos(replace(v.sink::text, ' ', ''), '"$secret":"' || $1 || '"') > 0 AND (
        EXISTS (SELECT FROM headgate.removal r WHERE r.datasource = d.id AND r.version = v.number)
        OR EXISTS (SELECT FROM headgate.stream s WHERE s.datasource = d.id AND s.epoch > 0)
    ) END
ORDER BY d.deleted, d.name, d.id, v.number
