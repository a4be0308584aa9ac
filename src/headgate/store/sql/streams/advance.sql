-- Rows of which nothing but the position changes; in the order of ids, and only those that are as they were read.
-- The ids are given twice, so that they and nothing else lead to the rows, however many there are of one owner.
UPDATE headgate.stream s SET commits = u.commits, position = u.position
FROM (
    SELECT * FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::json[])
    AS v (id, epoch, was_commits, commits, position) ORDER BY id
) AS u
WHERE s.id = ANY ($2::uuid[]) AND s.id = u.id AND s.owner IS NOT DISTINCT FROM $1 AND s.epoch = u.epoch AND s.commits = u.was_commits
