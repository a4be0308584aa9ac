INSERT INTO headgate.incident (rule, subject, why, since, told_at, told_to, better_since)
SELECT rule, subject, why, to_timestamp(since), to_timestamp(told_at),
       ARRAY(SELECT json_array_elements_text(told_to)), to_timestamp(better_since)
FROM unnest($1::text[], $2::text[], $3::text[], $4::float8[], $5::float8[], $6::json[], $7::float8[])
    AS u (rule, subject, why, since, told_at, told_to, better_since)
ORDER BY rule, subject
ON CONFLICT (rule, subject) DO UPDATE SET
    why = excluded.why, since = excluded.since, told_at = excluded.told_at, told_to = excluded.told_to, better_since = excluded.better_since
