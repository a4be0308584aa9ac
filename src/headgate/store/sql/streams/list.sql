SELECT s.*, d.name FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource
WHERE NOT d.deleted ORDER BY d.name, s.index
