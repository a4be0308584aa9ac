-- Taps that somebody still looks at. What a crash of the server has lost is there again.
INSERT INTO headgate.tap AS t (id, datasource, at, condition, sample, expires_at)
SELECT u.*, now() + $6::interval FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::integer[]) AS u
ORDER BY 1
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at
