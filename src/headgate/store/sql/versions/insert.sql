INSERT INTO headgate.datasource_version
    (datasource, number, status, source, mapping, sink, options, secrets, hash, author)
SELECT $1, coalesce(max(number), 0) + 1, $2, $3, $4, $5, $6, $7, $8, $9
FROM headgate.datasource_version WHERE datasource = $1
RETURNING number
