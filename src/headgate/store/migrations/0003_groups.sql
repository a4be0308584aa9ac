-- Where a stream should be, if that is not where it is: the planner's wish, or an operator's. No row means: keep.
-- A wish ends with its node.
CREATE TABLE headgate.wish (
    stream   uuid PRIMARY KEY REFERENCES headgate.stream ON DELETE CASCADE,
    node     uuid NOT NULL REFERENCES headgate.node ON DELETE CASCADE,
    pinned   boolean NOT NULL DEFAULT false,    -- an operator's
    stepping boolean NOT NULL DEFAULT false     -- the present owner has been told to step down
);
CREATE INDEX wish_node ON headgate.wish (node);
CREATE INDEX wish_stepping ON headgate.wish (stream) WHERE stepping;

-- Which process an incarnation belongs to, for the parent that will see it die.
ALTER TABLE headgate.node ADD COLUMN process uuid;

-- Groups of programs outside, of which one at a time is active. A row outlives its last consumer for a while, and the
-- highest epoch of those that were removed lives on: a fencing token never falls.
ALTER TABLE headgate.registry ADD COLUMN group_epoch bigint NOT NULL DEFAULT 0;
CREATE TABLE headgate.consumer_group (
    id         uuid PRIMARY KEY,
    stream     text NOT NULL,
    name       text NOT NULL,
    partition  integer,                         -- null: a simple group
    lease_s    double precision NOT NULL,
    epoch      bigint NOT NULL,                 -- of the last grant
    granted_to uuid,                            -- who was told active and may still believe it
    ignored    bigint NOT NULL DEFAULT 0,       -- confirmations that named another consumer or epoch
    lately     json NOT NULL DEFAULT '[]',      -- the last transitions, for people
    vacant_since timestamptz,                   -- since when nobody has been active who knew it
    changed_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (stream, name)
) WITH (fillfactor = 70);

CREATE TABLE headgate.consumer (
    id           uuid PRIMARY KEY,
    "group"      uuid NOT NULL REFERENCES headgate.consumer_group ON DELETE CASCADE,
    number       bigint NOT NULL,               -- in the order of registration
    node         uuid NOT NULL,                 -- which its connection hangs on; a node that is gone leaves it silent
    trust_s      double precision NOT NULL,     -- how long that node may go on echoing after it was ended
    label        text NOT NULL,
    connectivity text NOT NULL,                 -- connected, disconnected, forgotten
    activity     text NOT NULL,                 -- active, waiting, deactivating
    epoch        bigint NOT NULL,               -- under which it was last told active
    losses       integer NOT NULL,              -- how often it has lost touch
    answered     boolean NOT NULL,              -- whether it has answered its last order
    muted        boolean NOT NULL DEFAULT false,-- it let an order go unanswered: its beats are not echoed until it does
    since        timestamptz NOT NULL DEFAULT now() -- of its present status, for people
) WITH (fillfactor = 70);
CREATE INDEX consumer_group_members ON headgate.consumer ("group", number);
CREATE INDEX consumer_node ON headgate.consumer (node);
-- What observers look for: almost always nothing.
CREATE INDEX consumer_silent ON headgate.consumer (id) WHERE connectivity <> 'connected' OR muted;
CREATE INDEX consumer_ordered ON headgate.consumer (node) WHERE NOT answered;
