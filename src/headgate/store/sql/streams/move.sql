-- Rows that change hands, or that an operator edits, with a line of history each; as in advance.sql.
WITH saved AS (
    UPDATE headgate.stream s
    SET owner = $2, run = NULL, epoch = u.epoch, generation = u.generation, commits = u.commits, position = u.position, rests = u.rests,
        settled = u.settled, records_read = u.records_read, records_written = u.records_written,
        records_filtered = u.records_filtered, records_dead_lettered = u.records_dead_lettered, records_skipped = u.records_skipped
    FROM (
        SELECT * FROM unnest($3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::integer[], $8::bigint[],
                             $9::json[], $10::text[], $11::boolean[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[],
                             $16::bigint[])
        AS v (id, was_epoch, was_commits, epoch, generation, commits, position, rests, settled, records_read, records_written,
              records_filtered, records_dead_lettered, records_skipped)
        ORDER BY id
    ) AS u
    WHERE s.id = ANY ($3::uuid[]) AND s.id = u.id AND s.owner IS NOT DISTINCT FROM $1 AND s.epoch = u.was_epoch AND s.commits = u.was_commits
    RETURNING s.id, s.epoch, s.generation, s.commits, s.position
)
INSERT INTO headgate.stream_history (stream, kind, actor, epoch, generation, commits, position, before)
SELECT id, $17, coalesce($18, (SELECT name FROM headgate.node WHERE node.id = $19), 'headgate'),
       epoch, generation, commits, position, $20
FROM saved
