-- End our own sessions that wait for the second half of a command: their process has been stopped, and what they have
-- locked stays locked. To end one is always safe; at worst its transaction is tried again.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name = 'headgate'
  AND pid <> pg_backend_pid() AND state = 'active' AND wait_event = 'ClientRead'
  AND state_change < now() - interval '2 seconds'
