SELECT l.*, d.name, coalesce(s.label, s.index::text) AS part FROM headgate.dead_letter l
JOIN headgate.datasource d ON d.id = l.datasource AND NOT d.deleted
JOIN headgate.stream s ON s.id = l.stream
WHERE l.id = $1
