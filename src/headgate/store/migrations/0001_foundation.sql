-- The registry: one row that orders all changes. Whoever changes anything takes the next revision from it first, and
-- the row's lock makes the order of revisions the order of commits, so a reader of "revision > mine" misses nothing.
CREATE TABLE headgate.registry (
    only_one     boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    installation uuid NOT NULL DEFAULT gen_random_uuid(),
    revision     bigint NOT NULL DEFAULT 0
);
INSERT INTO headgate.registry DEFAULT VALUES;

CREATE TABLE headgate.datasource (
    id                uuid PRIMARY KEY,
    name              text NOT NULL,
    enabled           boolean NOT NULL DEFAULT true,
    published_version integer,
    running_version   integer,
    revision          bigint NOT NULL,          -- of the last change
    mark              bigint NOT NULL DEFAULT 0, -- revision of the last restart or change of a secret
    quarantine        text,                     -- set aside, and why
    deleted           boolean NOT NULL DEFAULT false,
    created_at        timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX datasource_name ON headgate.datasource (name) WHERE NOT deleted;
CREATE INDEX datasource_revision ON headgate.datasource (revision);

-- Documents are json, not jsonb: the order of fields is the author's.
CREATE TABLE headgate.datasource_version (
    datasource uuid NOT NULL REFERENCES headgate.datasource,
    number     integer NOT NULL,
    status     text NOT NULL CHECK (status IN ('draft', 'published', 'rejected', 'superseded')),
    source     json NOT NULL,
    mapping    json,
    sink       json NOT NULL,
    options    json NOT NULL DEFAULT '{}',
    secrets    text[] NOT NULL DEFAULT '{}',    -- names that the document refers to
    hash       text NOT NULL,
    author     text NOT NULL,
    reason     text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (datasource, number)
);
CREATE UNIQUE INDEX one_draft ON headgate.datasource_version (datasource) WHERE status = 'draft';
CREATE UNIQUE INDEX one_published ON headgate.datasource_version (datasource)
    WHERE status IN ('published', 'rejected');
CREATE INDEX version_secrets ON headgate.datasource_version USING gin (secrets);

-- A data key per secret, wrapped by a master key that is never in the database.
CREATE TABLE headgate.secret (
    name        text PRIMARY KEY,
    key_id      text NOT NULL,                  -- which master key wraps
    wrapped_key bytea NOT NULL,
    ciphertext  bytea NOT NULL,
    author      text NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE headgate.token (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    role       text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    hash       bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- One row per incarnation. An ended incarnation has no row, so its next beat finds nothing.
CREATE TABLE headgate.node (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    beat       bigint NOT NULL DEFAULT 0,
    lease_s    double precision NOT NULL,
    address    text,
    version    text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE headgate.stream (
    id              uuid PRIMARY KEY,
    datasource      uuid NOT NULL REFERENCES headgate.datasource,
    index           integer NOT NULL,
    owner           uuid,                       -- a node's incarnation
    run             uuid,                       -- the run that the epoch belongs to
    epoch           bigint NOT NULL DEFAULT 0,
    edits           integer NOT NULL DEFAULT 0,
    n               bigint NOT NULL DEFAULT 0,
    position        json,
    version         integer,                    -- of the last run
    source_identity text,                       -- which data the position is a position in
    sink_identity   text,
    UNIQUE (datasource, index)
) WITH (fillfactor = 70);
CREATE INDEX stream_owner ON headgate.stream (owner) WHERE owner IS NOT NULL;

-- What people see of a stream. Written by its holder only, fenced by its epoch.
CREATE TABLE headgate.datasource_state (
    stream        uuid PRIMARY KEY REFERENCES headgate.stream ON DELETE CASCADE,
    datasource    uuid NOT NULL,
    worker_status text NOT NULL,
    detail        text NOT NULL,
    node          uuid,
    version       integer,
    epoch         bigint NOT NULL,
    metrics       json NOT NULL DEFAULT '{}',
    error         json,
    changed_at    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE INDEX state_datasource ON headgate.datasource_state (datasource);

-- Append only. Whoever appends takes the advisory lock of this table as its last lock, so ids become visible in order.
CREATE TABLE headgate.datasource_events (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    datasource uuid,
    name       text,                            -- of the datasource, as it was then
    type       text NOT NULL,
    payload    json NOT NULL DEFAULT '{}',
    actor      text NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX events_datasource ON headgate.datasource_events (datasource, id);
CREATE FUNCTION headgate.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'datasource_events is append only';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON headgate.datasource_events
    FOR EACH STATEMENT EXECUTE FUNCTION headgate.refuse_change();

CREATE UNLOGGED TABLE headgate.log_line (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream     uuid NOT NULL,
    at         timestamptz NOT NULL,
    level      text NOT NULL,
    text       text NOT NULL,
    fields     json NOT NULL
);
CREATE INDEX log_stream ON headgate.log_line (stream, id);

-- Payloads that were answered 202. Ids are drawn under the datasource's advisory lock: they become visible in order.
CREATE TABLE headgate.inbox (
    datasource  uuid NOT NULL,
    id          bigint NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    headers     json NOT NULL,
    body        bytea NOT NULL,
    replay_key  text,                           -- the sender's own id or signature
    PRIMARY KEY (datasource, id)
);
CREATE SEQUENCE headgate.inbox_id CACHE 1;
CREATE UNIQUE INDEX inbox_replay ON headgate.inbox (datasource, replay_key) WHERE replay_key IS NOT NULL;

-- How full each inbox is, so that its limit costs no count.
CREATE TABLE headgate.inbox_size (
    datasource uuid PRIMARY KEY,
    rows       bigint NOT NULL,
    bytes      bigint NOT NULL
) WITH (fillfactor = 50);

-- Removes payloads that the registry's own position has passed, the oldest first, one datasource at a time and under
-- its lock. A position of another source than a webhook says nothing about the inbox.
CREATE FUNCTION headgate.inbox_drop_handled(of_datasource uuid, webhook text, older_than interval, most integer)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('inbox/' || of_datasource, 0));
    WITH gone AS (
        DELETE FROM headgate.inbox i
        USING (
            SELECT datasource, id FROM headgate.inbox
            WHERE datasource = of_datasource
              AND id <= (SELECT (position #>> '{}')::bigint FROM headgate.stream
                         WHERE datasource = of_datasource AND index = 0 AND source_identity = webhook
                           AND position #>> '{}' ~ '^[0-9]{1,18}$')
              AND received_at <= now() - older_than
            ORDER BY id LIMIT most
        ) AS old
        WHERE i.datasource = old.datasource AND i.id = old.id
        RETURNING octet_length(i.body) AS size
    ), shrunk AS (
        UPDATE headgate.inbox_size
        SET rows = rows - (SELECT count(*) FROM gone), bytes = bytes - (SELECT coalesce(sum(size), 0) FROM gone)
        WHERE datasource = of_datasource
    )
    SELECT count(*) INTO removed FROM gone;
    RETURN removed;
END $$;

-- Appends payloads of several datasources in one round trip and returns those whose inbox is full (and got nothing).
-- A function, so that the locks are taken, the ids drawn and the rows committed without waiting for the caller.
CREATE FUNCTION headgate.inbox_append(
    datasources uuid[], limit_rows bigint[], limit_bytes bigint[],
    datasource_of uuid[], headers_of json[], body_of bytea[], replay_key_of text[], webhook text
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    full_ones uuid[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('inbox/' || d, 0))
    FROM unnest(datasources) AS d ORDER BY d;

    SELECT coalesce(array_agg(d), '{}') INTO full_ones
    FROM unnest(datasources, limit_rows, limit_bytes) AS u (d, r, b)
    JOIN headgate.inbox_size s ON s.datasource = u.d
    WHERE s.rows >= u.r OR s.bytes >= u.b;

    -- What has been handled is kept for a while, but not at the price of turning callers away.
    IF full_ones <> '{}' THEN
        PERFORM headgate.inbox_drop_handled(d, webhook, '0', 10000) FROM unnest(full_ones) AS d;
        SELECT coalesce(array_agg(d), '{}') INTO full_ones
        FROM unnest(datasources, limit_rows, limit_bytes) AS u (d, r, b)
        JOIN headgate.inbox_size s ON s.datasource = u.d
        WHERE s.rows >= u.r OR s.bytes >= u.b;
    END IF;

    WITH added AS (
        INSERT INTO headgate.inbox (datasource, id, headers, body, replay_key)
        SELECT u.d, nextval('headgate.inbox_id'), u.h, u.b, u.k
        FROM unnest(datasource_of, headers_of, body_of, replay_key_of) WITH ORDINALITY AS u (d, h, b, k, o)
        WHERE u.d <> ALL (full_ones)
        ORDER BY u.o
        ON CONFLICT (datasource, replay_key) WHERE replay_key IS NOT NULL DO NOTHING
        RETURNING datasource, octet_length(body) AS size
    )
    INSERT INTO headgate.inbox_size AS s (datasource, rows, bytes)
    SELECT datasource, count(*), sum(size) FROM added GROUP BY datasource ORDER BY datasource
    ON CONFLICT (datasource) DO UPDATE SET rows = s.rows + excluded.rows, bytes = s.bytes + excluded.bytes;

    RETURN full_ones;
END $$;
