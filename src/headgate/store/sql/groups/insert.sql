INSERT INTO headgate.consumer_group (id, stream, name, partition, lease_s, epoch) VALUES ($1, $2, $3, $4, $5, 0)
ON CONFLICT (stream, name) DO NOTHING
