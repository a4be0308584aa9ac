-- Records for taps that are still there.
INSERT INTO headgate.tapped (tap, records, dropped, key_id, body)
SELECT t.id, u.records, u.dropped, u.key_id, u.body
FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::text[], $5::bytea[]) AS u (tap, records, dropped, key_id, body)
JOIN headgate.tap t ON t.id = u.tap AND t.expires_at > now()
ORDER BY t.id
FOR KEY SHARE OF t
