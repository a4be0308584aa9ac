-- What failed is tried again, and what a process that is known to be dead had is free.
UPDATE headgate.dump_chunk SET state = 'planned', attempts = 0, worker = NULL, until = NULL
WHERE dump = $1 AND (state = 'failed' OR (state = 'leased' AND starts_with(worker, $2 || '/')))
