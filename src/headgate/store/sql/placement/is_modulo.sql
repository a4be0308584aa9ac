SELECT v.options ->> 'assignment' = 'modulo' FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
WHERE s.id = $1
