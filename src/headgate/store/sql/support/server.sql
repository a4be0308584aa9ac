SELECT 'version' AS name, version() AS value
UNION ALL
SELECT name, setting || coalesce(' ' || unit, '') FROM pg_settings
WHERE name IN (
    'archive_mode', 'autovacuum', 'default_transaction_isolation', 'effective_cache_size', 'fsync', 'full_page_writes',
    'hot_standby', 'idle_in_transaction_session_timeout', 'in_hot_standby', 'jit', 'lc_collate', 'lock_timeout',
    'max_connections', 'max_locks_per_transaction', 'max_wal_senders', 'max_wal_size', 'server_encoding',
    'server_version', 'shared_buffers', 'statement_timeout', 'synchronous_commit', 'TimeZone', 'wal_level', 'work_mem'
)
ORDER BY 1
