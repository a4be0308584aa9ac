-- Rows that go to a new run, with a line of history each; as in advance.sql.
WITH saved AS (
    UPDATE headgate.stream s
    SET owner = $2, run = u.run, epoch = u.epoch, generation = u.generation, position = u.position, version = u.version,
        source_identity = u.source_identity, sink_identity = u.sink_identity, rests = NULL, settled = false,
        transactional = u.transactional, source_mark = u.source_mark, sink_mark = u.sink_mark
    FROM (
        SELECT * FROM unnest($3::uuid[], $4::bigint[], $5::bigint[], $6::uuid[], $7::bigint[], $8::integer[],
                             $9::json[], $10::integer[], $11::text[], $12::text[], $13::boolean[], $14::text[], $15::text[])
        AS v (id, was_epoch, was_commits, run, epoch, generation, position, version, source_identity, sink_identity, transactional,
              source_mark, sink_mark)
        ORDER BY id
    ) AS u
    WHERE s.id = ANY ($3::uuid[]) AND s.id = u.id AND s.owner IS NOT DISTINCT FROM $1 AND s.epoch = u.was_epoch AND s.commits = u.was_commits
    RETURNING s.id, s.epoch, s.generation, s.commits, s.position
)
INSERT INTO headgate.stream_history (stream, kind, actor, epoch, generation, commits, position)
SELECT id, 'acquired', coalesce((SELECT name FROM headgate.node WHERE node.id = $2), 'headgate'),
       epoch, generation, commits, position
FROM saved
