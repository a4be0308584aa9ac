-- Run the dump, unless another process does. The one that runs it already goes on under its epoch; any other begins
-- another snapshot, and until it has one nothing can be leased. $5: a process that is known to be dead.
UPDATE headgate.dump
SET owner = $2, process = $3, until = now() + $4::interval, epoch = epoch + (owner IS DISTINCT FROM $2)::integer,
    snapshot = CASE WHEN owner = $2 THEN snapshot END
WHERE id = $1 AND (owner IS NULL OR owner = $2 OR until IS NULL OR until <= now() OR process = $5) RETURNING epoch
