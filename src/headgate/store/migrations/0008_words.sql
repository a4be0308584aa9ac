-- One word for each thing. Nothing but names changes.
ALTER TABLE headgate.stream RENAME COLUMN edits TO generation;
ALTER TABLE headgate.stream RENAME COLUMN n TO commits;
ALTER TABLE headgate.stream RENAME COLUMN home TO settled;
ALTER TABLE headgate.stream_history RENAME COLUMN edits TO generation;
ALTER TABLE headgate.stream_history RENAME COLUMN n TO commits;
ALTER TABLE headgate.unable RENAME COLUMN wish TO wanted_key;
ALTER TABLE headgate.datasource RENAME COLUMN mark TO restarts;
ALTER TABLE headgate.datasource RENAME COLUMN partitions TO streams;

-- The option `partitions` of documents is called `streams`. The order of fields is the author's, and the hash stays that
-- of the document as it was written: whoever applies it with the new name publishes one more version.
UPDATE headgate.datasource_version SET options = (
    SELECT json_object_agg(CASE key WHEN 'partitions' THEN 'streams' ELSE key END, value ORDER BY place)
    FROM json_each(options) WITH ORDINALITY AS field (key, value, place)
) WHERE options -> 'partitions' IS NOT NULL;

-- The number of streams that a version asks for.
DROP FUNCTION headgate.partitions_of (uuid, integer);
CREATE FUNCTION headgate.streams_of(of_datasource uuid, of_version integer) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT coalesce((options ->> 'streams')::integer, 1) FROM headgate.datasource_version
    WHERE datasource = of_datasource AND number = of_version
$$;

-- A key for what is wanted of a stream. The first stream proves a published version, the others follow.
DROP FUNCTION headgate.wish_of (headgate.datasource, integer);
CREATE FUNCTION headgate.wanted_key(d headgate.datasource, index integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN index > 0 THEN coalesce(d.running_version, d.published_version) ELSE d.published_version END
           || '/' || d.restarts
$$;
