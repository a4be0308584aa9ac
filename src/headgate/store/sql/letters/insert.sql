-- Letters of one stream. One that is known already stays as it is.
INSERT INTO headgate.dead_letter (id, datasource, stream, place, stage, field, reason, cause, version, key, first_at, last_at,
    size_bytes, key_id, payload, outcome, outcome_at, in_sink, sink_key_id)
SELECT u.id, s.datasource, s.id, u.place, u.stage, u.field, u.reason, u.cause, u.version, u.key, to_timestamp(u.at_s),
       to_timestamp(u.at_s), u.size_bytes, u.key_id, CASE WHEN u.outcome = 'open' THEN u.payload END, u.outcome,
       CASE WHEN u.outcome <> 'open' THEN now() END, $2, CASE WHEN $2 THEN u.key_id END
FROM unnest($3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::integer[], $10::bytea[], $11::float8[],
            $12::bigint[], $13::text[], $14::bytea[], $15::text[])
    AS u (id, place, stage, field, reason, cause, version, key, at_s, size_bytes, key_id, payload, outcome)
JOIN headgate.stream s ON s.id = $1
ON CONFLICT (id) DO NOTHING
