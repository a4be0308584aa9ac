-- What documents may reach: folders, addresses and Python modules, by an admin's word.

CREATE TABLE headgate.allowed (
    kind       text NOT NULL CHECK (kind IN ('folder', 'address', 'module')),
    value      text NOT NULL,
    author     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, value)
);

-- A relative folder counts from where each node was started.
INSERT INTO headgate.allowed (kind, value, author) VALUES ('folder', '.', 'headgate');

-- Published by an admin: what is written in it may be reached. What runs when the lists come goes on running.
ALTER TABLE headgate.datasource_version ADD COLUMN is_trusted boolean NOT NULL DEFAULT false;
UPDATE headgate.datasource_version SET is_trusted = true WHERE status <> 'draft';
