-- The server and the registry's row. A standby writes no log.
SELECT installation, era, lineage AS kept, pg_is_in_recovery() AS is_standby,
       CASE WHEN NOT pg_is_in_recovery() THEN headgate.lineage() END AS server,
       CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END AS flushed
FROM headgate.registry
