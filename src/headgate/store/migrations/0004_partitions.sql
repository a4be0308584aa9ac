-- A datasource is read by several streams. Stream i of n reads those parts of the source whose place in `parts` is
-- i mod n.
ALTER TABLE headgate.datasource
    ADD COLUMN partitions integer NOT NULL DEFAULT 1,   -- wanted by the version that proved itself; until one has, by
                                                        -- the published one
    ADD COLUMN dealt      integer NOT NULL DEFAULT 1,   -- the number of streams that the parts were last dealt to
    ADD COLUMN dealing    boolean NOT NULL DEFAULT false, -- its streams are to stop, so that they can be dealt anew
    ADD COLUMN deal_due   boolean NOT NULL GENERATED ALWAYS AS (partitions <> dealt OR dealing) STORED,
    ADD COLUMN deal_after timestamptz,                  -- no other try to deal before this
    ADD COLUMN parts      json;                         -- names, in the order of first sight; none is ever removed
-- What the tick looks for: almost always nothing.
CREATE INDEX datasource_deal_due ON headgate.datasource (id) WHERE deal_due;

-- Whether the position here is the sink's own. Not while a run has the stream, nor after one that was taken from it or
-- did not learn what became of its last write: the sink may be ahead until another run opens it.
ALTER TABLE headgate.stream ADD COLUMN home boolean NOT NULL DEFAULT true;
UPDATE headgate.stream SET home = false WHERE epoch > 0;

-- The partitions that a version asks for.
CREATE FUNCTION headgate.partitions_of(of_datasource uuid, of_version integer) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT coalesce((options ->> 'partitions')::integer, 1) FROM headgate.datasource_version
    WHERE datasource = of_datasource AND number = of_version
$$;

-- What is wished of a stream, by name. The first stream proves a published version, the others follow.
CREATE FUNCTION headgate.wish_of(d headgate.datasource, index integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN index > 0 THEN coalesce(d.running_version, d.published_version) ELSE d.published_version END
           || '/' || d.mark
$$;
