UPDATE headgate.consumer_group g
SET partition = u.partition, lease_s = u.lease_s, epoch = u.epoch, granted_to = u.granted_to, ignored = u.ignored,
    lately = u.lately, vacant_since = u.vacant_since, fenced = u.fenced, changed_at = now()
FROM unnest($1::uuid[], $2::integer[], $3::float8[], $4::bigint[], $5::uuid[], $6::bigint[], $7::json[],
            $8::timestamptz[], $9::boolean[])
    AS u (id, partition, lease_s, epoch, granted_to, ignored, lately, vacant_since, fenced)
WHERE g.id = u.id
