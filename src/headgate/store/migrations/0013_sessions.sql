-- A browser that has signed in keeps the text of a session, never the token. A code is the text of a link that signs in:
-- it works once, soon. Only hashes are kept, and both end with their token.
CREATE TABLE headgate.session (
    id         uuid PRIMARY KEY,
    hash       bytea NOT NULL UNIQUE,
    token      uuid NOT NULL REFERENCES headgate.token ON DELETE CASCADE,
    is_code    boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),  -- Up to a minute late.
    idle_at    timestamptz NOT NULL,  -- It is over then unless it is seen before.
    expires_at timestamptz NOT NULL
);
CREATE INDEX session_token ON headgate.session (token, created_at);
