-- `$2` is the backend that has taken the lock. A pooler may have led us to another one: then the lock proves nothing.
UPDATE headgate.node SET beat = beat + 1, locked = coalesce(pg_backend_pid() = $2, false)
WHERE id = $1 AND NOT ended RETURNING beat
