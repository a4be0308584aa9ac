-- The schema `headgate` holds Headgate's own tables and nothing else. A database user of the same name finds and makes
-- tables without a schema in it, by the server's default search path: what sinks and dumps have made there moves to
-- `public`, and the user looks there from now on.

DO $$
DECLARE
    stray text;
BEGIN
    FOR stray IN
        SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'headgate' AND c.relkind IN ('r', 'p', 'v', 'm') AND c.relname NOT IN (
              'migration', 'registry', 'datasource', 'datasource_version', 'secret', 'token', 'node', 'stream',
              'datasource_state', 'datasource_events', 'log_line', 'inbox', 'inbox_size', 'unable',
              'stream_history', 'wish', 'consumer_group', 'consumer', 'dump', 'dump_table',
              'dump_chunk', 'dump_attempt', 'dump_deleted')
          AND pg_has_role(c.relowner, 'USAGE') AND to_regnamespace('public') IS NOT NULL
          AND has_schema_privilege(to_regnamespace('public'), 'CREATE')
          AND to_regclass('public.' || quote_ident(c.relname)) IS NULL
        ORDER BY c.relname
    LOOP
        EXECUTE format('ALTER TABLE headgate.%I SET SCHEMA public', stray);
    END LOOP;
    IF current_user = 'headgate' AND current_setting('search_path') = '"$user", public' THEN
        ALTER ROLE CURRENT_USER SET search_path = public;
    END IF;
END
$$;
