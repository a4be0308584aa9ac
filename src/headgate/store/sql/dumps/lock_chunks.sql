SELECT "table", number, lo, hi, state, epoch, worker, attempts, rows, bytes, error,
       coalesce(extract(epoch FROM until), 0)::double precision AS until_s,
       extract(epoch FROM clock_timestamp())::double precision AS now_s
FROM headgate.dump_chunk WHERE dump = $1 AND "table" = $2 AND number = ANY ($3::integer[]) ORDER BY number FOR UPDATE
