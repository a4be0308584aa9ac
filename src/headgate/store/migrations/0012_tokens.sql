-- Tokens that name what they are for, that end, and that stay known when they have ended: a token that was revoked must
-- not be made anew by a node that finds none.
UPDATE headgate.token t SET name = t.name || ' ' || t.id
    WHERE EXISTS (SELECT FROM headgate.token o WHERE o.name = t.name AND (o.created_at, o.id) < (t.created_at, t.id));

ALTER TABLE headgate.token
    DROP CONSTRAINT token_role_check,
    ADD CONSTRAINT token_role_check CHECK (role IN ('viewer', 'sender', 'operator', 'admin')),
    ADD COLUMN datasources text[],  -- Patterns; null in both: everything.
    ADD COLUMN groups      text[],
    ADD COLUMN author      text NOT NULL DEFAULT 'headgate',
    ADD COLUMN expires_at  timestamptz,
    ADD COLUMN ended_at    timestamptz,
    ADD COLUMN used_at     timestamptz,  -- Up to a minute late.
    ADD CONSTRAINT token_bounds CHECK ((datasources IS NULL) = (groups IS NULL)),
    ADD CONSTRAINT sender_has_bounds CHECK (role <> 'sender' OR datasources IS NOT NULL),
    ADD CONSTRAINT admin_has_none CHECK (role <> 'admin' OR datasources IS NULL);

-- The actor of an event is a token's name, so two that work must not share one.
CREATE UNIQUE INDEX token_name ON headgate.token (name) WHERE ended_at IS NULL;

-- From where each token was used, so that the first use from another address is an event.
CREATE TABLE headgate.token_address (
    token   uuid NOT NULL REFERENCES headgate.token ON DELETE CASCADE,
    address text NOT NULL,
    PRIMARY KEY (token, address)
);
