-- What a node knows to be its own, further on. Ids are given twice, so that they and nothing else lead to the rows.
UPDATE headgate.stream s SET commits = u.commits, position = u.position
FROM (
    SELECT * FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::json[]) AS v (id, epoch, commits, position) ORDER BY id
) AS u
WHERE s.id = ANY ($2::uuid[]) AND s.id = u.id AND s.owner IS NOT DISTINCT FROM $1 AND s.epoch = u.epoch AND s.commits < u.commits
