SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes, greatest(c.reltuples, 0)::bigint AS about_rows,
       s.n_dead_tup AS dead_rows, s.last_autovacuum
FROM pg_class c
LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE c.relnamespace = 'headgate'::regnamespace AND c.relkind = 'r'
ORDER BY 2 DESC
