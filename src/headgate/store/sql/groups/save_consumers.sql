INSERT INTO headgate.consumer AS c
    (id, "group", number, node, trust_s, label, connectivity, activity, epoch, incarnation, answered, muted)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::float8[], $6::text[], $7::text[],
                     $8::text[], $9::bigint[], $10::integer[], $11::boolean[], $12::boolean[])
ON CONFLICT (id) DO UPDATE SET node = excluded.node, trust_s = excluded.trust_s, connectivity = excluded.connectivity,
    activity = excluded.activity, epoch = excluded.epoch, incarnation = excluded.incarnation, answered = excluded.answered,
    muted = excluded.muted,
    since = CASE WHEN (c.connectivity, c.activity) = (excluded.connectivity, excluded.activity)
            THEN c.since ELSE now() END
