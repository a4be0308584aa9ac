-- What each datasource had moved in all when a minute was over. Totals, not differences: whoever writes a line takes
-- them from the streams' own rows, so a line that is written twice, late, by two nodes or after a crash says the same,
-- and one that is missing is made up for by the next. A day is a partition, and is dropped whole.
CREATE TABLE headgate.minute (
    datasource    uuid NOT NULL,                -- no reference: lines go with their day. All zeros: a node has written
    minute        timestamptz NOT NULL,         -- its beginning
    read          bigint NOT NULL,
    written       bigint NOT NULL,
    dead_lettered bigint NOT NULL,              -- the rest of what was read has been filtered
    bytes         bigint NOT NULL,              -- read in this minute
    backlog       bigint,                       -- records; null: the source cannot know it
    lag_s         real NOT NULL,                -- the longest of this minute
    PRIMARY KEY (datasource, minute)
) PARTITION BY RANGE (minute);

-- The day is made apart and then attached, so that neither readers nor writers of other days wait for it.
CREATE FUNCTION headgate.make_day_of_minutes(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    part text := 'minute_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF to_regclass('headgate.' || part) IS NULL THEN
        EXECUTE format('CREATE TABLE headgate.%I (LIKE headgate.minute INCLUDING ALL)', part);
        EXECUTE format('ALTER TABLE headgate.minute ATTACH PARTITION headgate.%I FOR VALUES FROM (%L) TO (%L)',
                       part, to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00', to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00');
    END IF;
END $$;

-- Drops one day that is over, the oldest before this one. A datasource that was quiet all the time since keeps its last
-- line, moved to the first day that stays: what it moves next is compared with it. Whoever reads or writes goes first:
-- nobody waits for this for longer than a fifth of a second, and the next try is soon.
CREATE FUNCTION headgate.drop_day_of_minutes(stays date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    part text;
    first timestamptz := stays::timestamp AT TIME ZONE 'UTC';
BEGIN
    SELECT min(c.relname) INTO part FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'headgate.minute'::regclass AND c.relname < 'minute_' || to_char(stays, 'YYYYMMDD');
    IF part IS NULL THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', '200ms', true);
    PERFORM headgate.make_day_of_minutes(stays);
    INSERT INTO headgate.minute
    SELECT d.id, first, last.read, last.written, last.dead_lettered, 0, last.backlog, 0
    FROM headgate.datasource d CROSS JOIN LATERAL (
        SELECT * FROM headgate.minute m WHERE m.datasource = d.id AND m.minute < first ORDER BY m.minute DESC LIMIT 1
    ) AS last
    WHERE NOT d.deleted
    ON CONFLICT DO NOTHING;
    LOCK TABLE ONLY headgate.minute IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('DROP TABLE headgate.%I', part);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- What was moved before anybody kept minutes belongs to none of them. The first line that a node writes may be that of
-- the minute before this one.
SELECT headgate.make_day_of_minutes(day::date) FROM generate_series(
    (now() - interval '2 minutes') AT TIME ZONE 'UTC', now() AT TIME ZONE 'UTC' + interval '1 day', interval '1 day') AS day;
INSERT INTO headgate.minute
SELECT datasource, date_trunc('minute', now()) - interval '2 minutes', sum(records_read), sum(records_written), sum(records_dead_lettered), 0, NULL, 0
FROM headgate.stream GROUP BY datasource;

-- Who is told of what: one document, or none. And which node sends: one that lives, until another has to.
CREATE TABLE headgate.notifications (
    only_one     boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    document     json,                          -- null: nobody is told of anything
    version      integer NOT NULL DEFAULT 0,    -- rises with each change, also when it is deleted
    author       text,
    changed_at   timestamptz,
    sender       uuid,                          -- an incarnation
    sender_until timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO headgate.notifications DEFAULT VALUES;

-- What is wrong now, or was a moment ago. What was told is told again when it is over, by the node that sends then.
CREATE TABLE headgate.incident (
    rule         text NOT NULL,
    subject      text NOT NULL,                 -- a datasource or a node, by name
    why          text NOT NULL,
    since        timestamptz NOT NULL,
    told_at      timestamptz,                   -- null: not for long enough yet
    told_to      text[] NOT NULL DEFAULT '{}',  -- targets
    better_since timestamptz,                   -- null: it is still so
    PRIMARY KEY (rule, subject)
);

-- What is to be sent. A message goes when its target has taken it, or when it is too old.
CREATE TABLE headgate.message (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         uuid NOT NULL UNIQUE,            -- by which the other side knows a repeat
    target     text NOT NULL,
    body       json NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    due_at     timestamptz NOT NULL DEFAULT now(),
    attempts   integer NOT NULL DEFAULT 0,
    reason     text                             -- why the last attempt failed
);
CREATE INDEX message_target ON headgate.message (target, number);

-- Nodes that were found dead and have not come back under their name.
CREATE TABLE headgate.lost_node (
    name text PRIMARY KEY,
    at   timestamptz NOT NULL DEFAULT now()
);
