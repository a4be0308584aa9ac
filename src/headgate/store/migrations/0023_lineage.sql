-- In which history the registry is at home, and in which era it is (`core.lineage`). A registry that no node has worked
-- with yet has no home: a copy that is made of it then, such as a template, is as good as the original.
ALTER TABLE headgate.registry
    ADD COLUMN era          bigint NOT NULL DEFAULT 0,
    ADD COLUMN era_began_at timestamptz,
    ADD COLUMN lineage      text;

-- The history that this server writes. A user who may not read the system's identifier is told apart by the rest.
CREATE FUNCTION headgate.lineage() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    system text := '0';
BEGIN
    BEGIN
        SELECT system_identifier::text INTO system FROM pg_control_system();
    EXCEPTION WHEN insufficient_privilege THEN
        NULL;
    END;
    RETURN system
        || '/' || ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
        || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())
        || '/' || 'headgate.registry'::regclass::oid;
END $$;

-- Streams that are made in an era begin above all earlier ones, because their ids may have been used in a time that was
-- lost.
CREATE FUNCTION headgate.first_epoch() RETURNS bigint LANGUAGE sql STABLE AS
    'SELECT era << 40 FROM headgate.registry';
ALTER TABLE headgate.stream ALTER COLUMN epoch SET DEFAULT headgate.first_epoch();
