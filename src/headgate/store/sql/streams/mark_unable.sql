INSERT INTO headgate.unable (stream, node, wanted_key, reason)
SELECT stream, $1, wanted_key, reason FROM unnest($2::uuid[], $3::text[], $4::text[]) AS u (stream, wanted_key, reason)
ORDER BY stream
ON CONFLICT (stream, node) DO UPDATE SET wanted_key = excluded.wanted_key, reason = excluded.reason, at = now()
