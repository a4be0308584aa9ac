SELECT count(*) AS standbys, count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) AS synchronous,
       count(*) FILTER (WHERE sync_state IS NULL) AS hidden, current_setting('synchronous_commit') AS synchronous_commit
FROM pg_stat_replication
