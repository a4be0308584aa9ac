-- Chunks that nobody has, or whose lease has run out, first things first.
SELECT "table", number, lo, hi, state, epoch, worker, attempts, rows, bytes, error,
       coalesce(extract(epoch FROM until), 0)::double precision AS until_s,
       extract(epoch FROM clock_timestamp())::double precision AS now_s
FROM headgate.dump_chunk
WHERE dump = $1 AND (state = 'planned' OR (state = 'leased' AND until <= clock_timestamp()))
ORDER BY "table", number LIMIT $2 FOR UPDATE SKIP LOCKED
