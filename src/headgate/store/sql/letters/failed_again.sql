UPDATE headgate.dead_letter l SET attempts = l.attempts + 1, last_at = now(), stage = u.stage, field = u.field, reason = u.reason,
    cause = u.cause, version = u.version, replay = NULL
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[]) AS u (id, stage, field, reason, cause, version)
WHERE l.id = u.id AND l.outcome = 'open'
