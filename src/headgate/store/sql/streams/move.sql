-- Rows that change hands, or that an operator edits, with a line of history each; as in advance.sql.
WITH saved AS (
    UPDATE headgate.stream s
    SET owner = $2, run = NULL, epoch = u.epoch, generation = u.generation, commits = u.commits, position = u.position, rests = u.rests,
        settled = u.settled
    FROM (
        SELECT * FROM unnest($3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::integer[], $8::bigint[],
                             $9::json[], $10::text[], $11::boolean[])
        AS v (id, was_epoch, was_commits, epoch, generation, commits, position, rests, settled) ORDER BY id
    ) AS u
    WHERE s.id = ANY ($3::uuid[]) AND s.id = u.id AND s.owner IS NOT DISTINCT FROM $1 AND s.epoch = u.was_epoch AND s.commits = u.was_commits
    RETURNING s.id, s.epoch, s.generation, s.commits, s.position
)
INSERT INTO headgate.stream_history (stream, kind, actor, epoch, generation, commits, position, before)
SELECT id, $12, coalesce($13, (SELECT name FROM headgate.node WHERE node.id = $14), 'headgate'),
       epoch, generation, commits, position, $15
FROM saved
