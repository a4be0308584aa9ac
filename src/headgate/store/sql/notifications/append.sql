INSERT INTO headgate.message (id, target, body) SELECT * FROM unnest($1::uuid[], $2::text[], $3::json[])
