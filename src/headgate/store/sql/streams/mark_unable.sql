INSERT INTO headgate.unable (stream, node, wish, reason)
SELECT stream, $1, wish, reason FROM unnest($2::uuid[], $3::text[], $4::text[]) AS u (stream, wish, reason)
ORDER BY stream
ON CONFLICT (stream, node) DO UPDATE SET wish = excluded.wish, reason = excluded.reason, at = now()
