-- A dump copies tables from one storage to another in chunks. What is here is the plan and the history; what has been
-- written is said by the target's own ledger.
CREATE TABLE headgate.dump (
    id         uuid PRIMARY KEY,
    source     text NOT NULL,                       -- without passwords, for people
    target     text NOT NULL,
    key_id     text,                                -- the URLs, encrypted as secrets are; null: there is no master key
    wrapped    bytea,
    ciphertext bytea,
    options    json NOT NULL,
    datasource uuid REFERENCES headgate.datasource, -- a backfill goes through its mapping, into its sink
    status     text NOT NULL DEFAULT 'running',     -- running, completed, incomplete, failed, cancelled
    wanted     text NOT NULL DEFAULT 'run',         -- run, pause, cancel
    rate       text,                                -- as it was said; null: as fast as it goes
    place      text NOT NULL DEFAULT 'here',        -- here: whoever began it runs it; nodes: a node, or all of them
    spread     boolean NOT NULL DEFAULT false,
    owner      uuid,                                -- whose StreamProcess plans it, until when
    epoch      bigint NOT NULL DEFAULT 0,
    process    text,                                -- host and process, so that its end can be seen on that host
    until      timestamptz,
    snapshot   text,
    fuzzy      boolean NOT NULL DEFAULT false,
    error      text NOT NULL DEFAULT '',
    actor      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz
);
CREATE INDEX dump_open ON headgate.dump (id) WHERE status = 'running';

CREATE TABLE headgate.dump_table (
    dump       uuid NOT NULL REFERENCES headgate.dump ON DELETE CASCADE,
    number     integer NOT NULL,
    name       text NOT NULL,
    target     text NOT NULL,
    state      text NOT NULL DEFAULT 'waiting',     -- waiting, copying, finishing, done, failed
    job        json NOT NULL,                       -- what is copied, and how it is written
    top        json,
    at         json,
    planned    boolean NOT NULL DEFAULT false,      -- nothing new is to be cut
    size       integer NOT NULL,
    fixed      boolean NOT NULL DEFAULT false,
    error      text NOT NULL DEFAULT '',
    started_at timestamptz,
    ended_at   timestamptz,
    PRIMARY KEY (dump, number)
);
CREATE INDEX dump_table_target ON headgate.dump_table (target);

CREATE TABLE headgate.dump_chunk (
    dump     uuid NOT NULL,
    "table"  integer NOT NULL,
    number   integer NOT NULL,
    lo       json,
    hi       json NOT NULL,
    state    text NOT NULL DEFAULT 'planned',
    epoch    bigint NOT NULL DEFAULT 0,
    worker   text,
    until    timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    rows     bigint NOT NULL DEFAULT 0,
    bytes    bigint NOT NULL DEFAULT 0,
    error    text NOT NULL DEFAULT '',
    PRIMARY KEY (dump, "table", number),
    FOREIGN KEY (dump, "table") REFERENCES headgate.dump_table ON DELETE CASCADE
);
-- What a worker looks for.
CREATE INDEX dump_chunk_open ON headgate.dump_chunk (dump, "table", number) WHERE state IN ('planned', 'leased');

-- Every attempt of every chunk.
CREATE TABLE headgate.dump_attempt (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dump    uuid NOT NULL REFERENCES headgate.dump ON DELETE CASCADE,
    "table" integer NOT NULL,
    chunk   integer NOT NULL,
    worker  text NOT NULL,
    kind    text NOT NULL,                          -- completed, end, error, failure
    rows    bigint NOT NULL DEFAULT 0,
    bytes   bigint NOT NULL DEFAULT 0,
    seconds double precision NOT NULL DEFAULT 0,
    error   text NOT NULL DEFAULT '',
    at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX dump_attempt_dump ON headgate.dump_attempt (dump, id);
