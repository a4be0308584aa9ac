-- Taps: what people look at now. Each is renewed every few seconds by the node that was asked, and ends with it. Unlogged:
-- nothing here is worth keeping, and what a crash loses is written again.
CREATE UNLOGGED TABLE headgate.tap (
    id         uuid PRIMARY KEY,
    datasource uuid NOT NULL,
    at         text NOT NULL CHECK (at IN ('source', 'mapped', 'written', 'dead')),
    condition  text NOT NULL,                   -- an expression; empty: all records
    sample     integer NOT NULL,
    expires_at timestamptz NOT NULL
);

-- Records on their way to the node that was asked, some in each row. It removes what it has read.
CREATE UNLOGGED TABLE headgate.tapped (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tap     uuid NOT NULL REFERENCES headgate.tap ON DELETE CASCADE,
    records integer NOT NULL,
    dropped bigint NOT NULL,                    -- records that are not shown
    key_id  text,                               -- which master key wraps; null: the records are not encrypted
    body    bytea NOT NULL
);
CREATE INDEX tapped_tap ON headgate.tapped (tap, id);
