-- Fixtures: inputs of a datasource with the results that they should have. They hold records, and are encrypted as
-- secrets are.

CREATE TABLE headgate.fixture (
    datasource  uuid NOT NULL REFERENCES headgate.datasource (id) ON DELETE CASCADE,
    name        text NOT NULL,
    inputs      integer NOT NULL,
    key_id      text NOT NULL,
    wrapped_key bytea NOT NULL,
    ciphertext  bytea NOT NULL,
    author      text NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (datasource, name)
);
