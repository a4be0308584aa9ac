-- All that a stream has ever handled, kept with its progress.
ALTER TABLE headgate.stream
    ADD COLUMN records_read          bigint NOT NULL DEFAULT 0,
    ADD COLUMN records_written       bigint NOT NULL DEFAULT 0,
    ADD COLUMN records_filtered      bigint NOT NULL DEFAULT 0,
    ADD COLUMN records_dead_lettered bigint NOT NULL DEFAULT 0,
    ADD COLUMN records_skipped       bigint NOT NULL DEFAULT 0; -- discarded at once: a part of the dead-lettered

-- Records that could not be mapped or written. Where the sink keeps letters next to the data, this is a copy.
CREATE TABLE headgate.dead_letter (
    id         uuid PRIMARY KEY,
    datasource uuid NOT NULL,
    stream     uuid NOT NULL REFERENCES headgate.stream ON DELETE CASCADE,
    place      text NOT NULL,                   -- what the source calls it
    stage      text NOT NULL CHECK (stage IN ('source', 'mapping', 'sink')),
    field      text,
    reason     text NOT NULL,
    cause      text NOT NULL,
    version    integer NOT NULL,                -- of the datasource, that could not handle it
    key        bytea,                           -- a hash of the record's key
    attempts   integer NOT NULL DEFAULT 1,
    first_at   timestamptz NOT NULL,
    last_at    timestamptz NOT NULL,
    size_bytes bigint NOT NULL,                 -- of the payload
    key_id     text,                            -- which master key wraps; null: the payload is not encrypted
    payload    bytea,                           -- null once the letter is not open any more
    outcome    text NOT NULL DEFAULT 'open' CHECK (outcome IN ('open', 'replayed', 'superseded', 'discarded', 'expired')),
    outcome_at timestamptz,
    actor      text,                            -- who asked for the replay, or discarded it
    in_sink    boolean NOT NULL,                -- a copy of one that the sink keeps
    told_at    timestamptz,                     -- when the sink was told of an outcome that people, or time, decided
    replay     json                             -- asked for: by which version, and whether over newer rows
);
CREATE INDEX dead_letter_stream ON headgate.dead_letter (stream, id);
CREATE INDEX dead_letter_datasource ON headgate.dead_letter (datasource, last_at DESC, id);
CREATE INDEX dead_letter_asked ON headgate.dead_letter (stream, first_at, id) WHERE replay IS NOT NULL;
CREATE INDEX dead_letter_open ON headgate.dead_letter (last_at) WHERE outcome = 'open';
CREATE INDEX dead_letter_over ON headgate.dead_letter (outcome_at) WHERE outcome <> 'open';

-- What became of letters whose rows are gone, so that the numbers of a stream add up for ever.
CREATE TABLE headgate.dead_letter_past (
    stream  uuid NOT NULL REFERENCES headgate.stream ON DELETE CASCADE,
    outcome text NOT NULL,
    letters bigint NOT NULL,
    PRIMARY KEY (stream, outcome)
);

-- `30d` in a document. A text that is no duration counts as 30 days: a document that says so is never published.
CREATE FUNCTION headgate.interval_of(text) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN $1 ~ '^[0-9]{1,9}([.][0-9]{1,9})?\s*[smhd]$' THEN
        make_interval(secs => rtrim($1, 'smhd ')::float8 * CASE right($1, 1) WHEN 's' THEN 1 WHEN 'm' THEN 60 WHEN 'h' THEN 3600 ELSE 86400 END)
    ELSE interval '30 days' END
$$;

-- `on_error` stands next to `mapping`, since it is about the sink as well. The hash stays that of the document as it was
-- written, and the order of fields is the author's: whoever applies it with the new place publishes one more version.
UPDATE headgate.datasource_version SET
    options = (
        SELECT json_object_agg(key, value ORDER BY place) FROM (
            SELECT key, value, place FROM json_each(options) WITH ORDINALITY AS field (key, value, place)
            UNION ALL SELECT 'on_error', mapping -> 'on_error', 1000000
        ) AS fields
    ),
    mapping = (
        SELECT json_object_agg(key, value ORDER BY place)
        FROM json_each(mapping) WITH ORDINALITY AS field (key, value, place) WHERE key <> 'on_error'
    )
WHERE json_typeof(mapping) = 'object' AND mapping -> 'on_error' IS NOT NULL AND options -> 'on_error' IS NULL;
