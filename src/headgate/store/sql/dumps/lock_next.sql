-- The first chunk whose lease or wait is over, of those that this run is for, of a table that is ready for it, and for a
-- worker that reads in the snapshot of this run.
SELECT c."table", c.number, c.lo, c.hi, c.state, c.epoch, c.worker, c.attempts, c.rows, c.bytes, c.error,
       coalesce(extract(epoch FROM c.until), 0)::double precision AS until_s,
       extract(epoch FROM clock_timestamp())::double precision AS now_s
FROM headgate.dump_chunk c JOIN headgate.dump_table t ON t.dump = c.dump AND t.number = c."table"
JOIN headgate.dump d ON d.id = c.dump
WHERE c.dump = $1 AND c.state IN ('planned', 'leased') AND (c.until IS NULL OR c.until <= clock_timestamp())
  AND (t.listed IS NULL OR c.number = ANY (t.listed))
  AND t.state = 'copying' AND d.snapshot = $2
ORDER BY c."table", c.number LIMIT 1 FOR UPDATE OF c SKIP LOCKED
