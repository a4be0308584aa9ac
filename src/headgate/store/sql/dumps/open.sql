-- Dumps that nodes run: those that need somebody to run them, and those that all work on.
SELECT id, spread, options, coalesce(until > now(), false) AS is_run, datasource FROM headgate.dump
WHERE status = 'running' AND place = 'nodes' AND wanted <> 'pause' ORDER BY created_at
