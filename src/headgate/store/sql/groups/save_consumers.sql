INSERT INTO headgate.consumer AS c
    (id, "group", number, node, label, connectivity, activity, epoch, losses, answered, muted)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::text[], $6::text[], $7::text[],
                     $8::bigint[], $9::integer[], $10::boolean[], $11::boolean[])
ON CONFLICT (id) DO UPDATE SET node = excluded.node, connectivity = excluded.connectivity,
    activity = excluded.activity, epoch = excluded.epoch, losses = excluded.losses, answered = excluded.answered,
    muted = excluded.muted,
    since = CASE WHEN (c.connectivity, c.activity) = (excluded.connectivity, excluded.activity)
            THEN c.since ELSE now() END
