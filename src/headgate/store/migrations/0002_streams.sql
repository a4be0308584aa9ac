-- A stream that a program pushes has a label in place of an index.
ALTER TABLE headgate.stream
    ALTER COLUMN index DROP NOT NULL,
    ADD COLUMN label text,
    ADD COLUMN rests text,                      -- the wish for which its source has come to an end
    ADD CONSTRAINT numbered_or_labelled CHECK ((index IS NULL) <> (label IS NULL));
CREATE UNIQUE INDEX stream_label ON headgate.stream (datasource, label) WHERE label IS NOT NULL;
-- What the tick looks for, and what a node looks for: both are almost always empty.
CREATE INDEX stream_free ON headgate.stream (id) WHERE owner IS NULL AND label IS NULL;
CREATE INDEX stream_granted ON headgate.stream (owner) WHERE run IS NULL AND owner IS NOT NULL;

-- Rows that change hands often leave dead versions behind, which slow down whoever looks for the living one.
ALTER TABLE headgate.stream SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

ALTER TABLE headgate.node ADD COLUMN draining boolean NOT NULL DEFAULT false;

-- Nodes that could not run a stream, for one wish of the registry. Another wish is another chance.
CREATE TABLE headgate.unable (
    stream uuid NOT NULL REFERENCES headgate.stream ON DELETE CASCADE,
    node   uuid NOT NULL REFERENCES headgate.node ON DELETE CASCADE,
    wish   text NOT NULL,
    reason text NOT NULL,
    at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, node)
);
CREATE INDEX unable_node ON headgate.unable (node);

-- Where a stream stood each time its owner or an operator changed. What an operator did keeps what was before.
CREATE TABLE headgate.stream_history (
    id       bigint GENERATED ALWAYS AS IDENTITY,
    stream   uuid NOT NULL,                     -- no reference: a thousand claims would check it a thousand times
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind     text NOT NULL,                     -- granted, acquired, released, revoked, edited
    actor    text NOT NULL,                     -- a node's name, or whoever edited
    epoch    bigint NOT NULL,
    edits    integer NOT NULL,
    n        bigint NOT NULL,
    position json,
    before   json                               -- edited: the position that it replaced
);
CREATE INDEX history_stream ON headgate.stream_history (stream, id);
