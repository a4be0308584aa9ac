INSERT INTO headgate.dump_attempt (dump, "table", chunk, worker, kind, rows, bytes, seconds, error, lo, hi)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
