-- What systems are known by, whatever their addresses; as in advance.sql.
UPDATE headgate.stream s SET source_mark = u.source_mark, sink_mark = u.sink_mark
FROM (
    SELECT * FROM unnest($2::uuid[], $3::bigint[], $4::text[], $5::text[]) AS v (id, epoch, source_mark, sink_mark) ORDER BY id
) AS u
WHERE s.id = ANY ($2::uuid[]) AND s.id = u.id AND s.owner IS NOT DISTINCT FROM $1 AND s.epoch = u.epoch
