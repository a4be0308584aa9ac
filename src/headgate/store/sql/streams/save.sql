UPDATE headgate.stream s
SET owner = u.owner, run = u.run, epoch = u.epoch, edits = u.edits, n = u.n, position = u.position,
    version = u.version, source_identity = u.source_identity, sink_identity = u.sink_identity
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::integer[], $6::bigint[], $7::json[], $8::integer[],
            $9::text[], $10::text[])
    AS u (id, owner, run, epoch, edits, n, position, version, source_identity, sink_identity)
WHERE s.id = u.id
