SELECT "table", number, lo, hi, state, epoch, worker, attempts, rows, bytes, error,
       coalesce(extract(epoch FROM until), 0)::double precision AS until_s
FROM headgate.dump_chunk WHERE dump = $1 AND ($2::integer IS NULL OR "table" = $2)
ORDER BY "table", number FOR UPDATE
