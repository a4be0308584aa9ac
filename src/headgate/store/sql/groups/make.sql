-- In the order of their names: two batches that make the same groups wait for each other, in one direction only.
INSERT INTO headgate.consumer_group (id, stream, name, partition, lease_s, epoch)
SELECT n.id, n.stream, n.name, n.partition, n.lease_s, 0
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::float8[]) AS n (id, stream, name, partition, lease_s)
WHERE NOT EXISTS (SELECT FROM headgate.consumer_group g WHERE g.stream = n.stream AND g.name = n.name)
ORDER BY n.stream, n.name
ON CONFLICT (stream, name) DO NOTHING
