-- Rows that change hands, or that an operator edits, with a line of history each; as in advance.sql.
WITH saved AS (
    UPDATE headgate.stream s
    SET owner = $2, run = NULL, epoch = u.epoch, edits = u.edits, n = u.n, position = u.position, rests = u.rests,
        home = u.home
    FROM (
        SELECT * FROM unnest($3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::integer[], $8::bigint[],
                             $9::json[], $10::text[], $11::boolean[])
        AS v (id, was_epoch, was_n, epoch, edits, n, position, rests, home) ORDER BY id
    ) AS u
    WHERE s.id = ANY ($3::uuid[]) AND s.id = u.id AND s.owner IS NOT DISTINCT FROM $1 AND s.epoch = u.was_epoch AND s.n = u.was_n
    RETURNING s.id, s.epoch, s.edits, s.n, s.position
)
INSERT INTO headgate.stream_history (stream, kind, actor, epoch, edits, n, position, before)
SELECT id, $12, coalesce($13, (SELECT name FROM headgate.node WHERE node.id = $14), 'headgate'),
       epoch, edits, n, position, $15
FROM saved
