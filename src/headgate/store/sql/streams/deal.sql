-- Free rows, locked, that get another share of the parts, with a line of history each.
WITH saved AS (
    UPDATE headgate.stream s
    SET run = NULL, epoch = u.epoch, generation = u.generation, position = u.position, version = u.version,
        source_identity = u.source_identity, source_mark = u.source_mark, rests = NULL, settled = true
    FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::json[], $5::integer[], $6::text[], $7::text[])
        AS u (id, epoch, generation, position, version, source_identity, source_mark)
    WHERE s.id = u.id AND s.owner IS NULL
    RETURNING s.id, s.epoch, s.generation, s.commits, s.position
)
INSERT INTO headgate.stream_history (stream, kind, actor, epoch, generation, commits, position)
SELECT id, 'dealt', 'headgate', epoch, generation, commits, position FROM saved
