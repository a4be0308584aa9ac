SELECT a.id, a."table", t.name, a.chunk, a.worker, a.kind, a.rows, a.bytes, a.seconds, a.error, a.at, a.lo, a.hi
FROM headgate.dump_attempt a JOIN headgate.dump_table t ON t.dump = a.dump AND t.number = a."table"
WHERE a.dump = $1 AND a.id > $2 ORDER BY a.id LIMIT $3
