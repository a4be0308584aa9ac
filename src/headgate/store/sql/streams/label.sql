-- One row for each label; those that exist stay.
INSERT INTO headgate.stream (id, datasource, label)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS u (id, datasource, label)
ORDER BY datasource, label
ON CONFLICT (datasource, label) WHERE label IS NOT NULL DO NOTHING
