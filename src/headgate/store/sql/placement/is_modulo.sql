SELECT v.options ->> 'assignment' = 'modulo' FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
JOIN headgate.datasource_version p ON p.datasource = d.id AND p.number = d.published_version
JOIN headgate.datasource_version v
    ON v.datasource = d.id AND v.number = CASE WHEN p.status = 'rejected' THEN d.running_version ELSE p.number END
WHERE s.id = $1
