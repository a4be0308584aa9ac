INSERT INTO headgate.log_line (stream, at, level, text, fields)
SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::json[])
