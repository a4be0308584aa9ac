-- Datasources that have changed since $1, deleted ones among them, or whose published version has.
SELECT d.* FROM headgate.datasource d
LEFT JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
WHERE age(d.xmin) <= age($1::xid) OR age(v.xmin) <= age($1::xid)
