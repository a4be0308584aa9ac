INSERT INTO headgate.stream (id, datasource, index)
SELECT u.id, $1, u.index FROM unnest($2::uuid[], $3::integer[]) AS u (id, index)
RETURNING index, id, epoch
