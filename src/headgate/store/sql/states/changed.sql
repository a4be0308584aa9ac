-- Datasources that have changed since $1, or one of whose streams has, or what is said of it.
SELECT DISTINCT s.datasource
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
LEFT JOIN headgate.datasource_state st ON st.stream = s.id
WHERE age(s.xmin) <= age($1::xid) OR age(d.xmin) <= age($1::xid) OR age(st.xmin) <= age($1::xid)
