SELECT a.id, a."table", t.name, a.chunk, a.worker, a.kind, a.rows, a.bytes, a.seconds, a.error, a.at, c.lo, c.hi
FROM headgate.dump_attempt a JOIN headgate.dump_table t ON t.dump = a.dump AND t.number = a."table"
LEFT JOIN headgate.dump_chunk c ON c.dump = a.dump AND c."table" = a."table" AND c.number = a.chunk
WHERE a.dump = $1 AND a.id > $2 ORDER BY a.id LIMIT $3
