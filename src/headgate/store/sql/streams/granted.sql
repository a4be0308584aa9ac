SELECT id, datasource, index, epoch FROM headgate.stream
WHERE owner = $1 AND run IS NULL AND label IS NULL ORDER BY id
