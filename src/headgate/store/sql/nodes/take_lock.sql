-- The backend that has the lock now; null if another session has it.
SELECT CASE WHEN pg_try_advisory_lock($1) THEN pg_backend_pid() END
