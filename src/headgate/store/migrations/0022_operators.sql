-- A paused datasource is read by nobody, and its doors go on taking what comes. `is_to_run` stays the one formula.
ALTER TABLE headgate.datasource
    DROP COLUMN is_to_run,
    ADD COLUMN paused boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT paused_is_enabled CHECK (enabled OR NOT paused);
ALTER TABLE headgate.datasource ADD COLUMN is_to_run boolean NOT NULL GENERATED ALWAYS AS (
    enabled AND NOT paused AND NOT deleted AND published_version IS NOT NULL AND quarantine IS NULL AND NOT dealing
) STORED;

-- What the streams of deleted datasources have left in sinks: a row for each stream and each sink that its datasource
-- ever had. Any node removes it, however long the sink is away.
CREATE TABLE headgate.removal (
    stream     uuid NOT NULL,                       -- no reference: the stream is gone
    version    integer NOT NULL,                    -- of the datasource, whose sink it is
    datasource uuid NOT NULL REFERENCES headgate.datasource,
    since      timestamptz NOT NULL DEFAULT now(),
    due_at     timestamptz NOT NULL,
    attempts   integer NOT NULL DEFAULT 0,
    reason     text,                                -- why the last attempt failed
    PRIMARY KEY (stream, version)
);
CREATE INDEX removal_due ON headgate.removal (due_at);
CREATE INDEX removal_datasource ON headgate.removal (datasource);
