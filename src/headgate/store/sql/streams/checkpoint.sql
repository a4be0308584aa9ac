-- What a node knows to be its own, further on. Ids are given twice, so that they and nothing else lead to the rows.
UPDATE headgate.stream s SET commits = u.commits, position = u.position, records_read = u.records_read, records_written = u.records_written,
    records_filtered = u.records_filtered, records_dead_lettered = u.records_dead_lettered, records_skipped = u.records_skipped
FROM (
    SELECT * FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::json[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
                         $10::bigint[])
    AS v (id, epoch, commits, position, records_read, records_written, records_filtered, records_dead_lettered, records_skipped) ORDER BY id
) AS u
WHERE s.id = ANY ($2::uuid[]) AND s.id = u.id AND s.owner IS NOT DISTINCT FROM $1 AND s.epoch = u.epoch AND s.commits < u.commits
