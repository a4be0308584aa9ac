-- Letters of some datasources, the latest first, after the one that was shown last. The record stays where it is.
SELECT l.id, l.datasource, l.stream, l.place, l.stage, l.field, l.reason, l.cause, l.version, l.key, l.attempts, l.first_at, l.last_at,
       l.size_bytes, l.outcome, l.outcome_at, l.actor, l.replay, d.name, coalesce(s.label, s.index::text) AS part
FROM headgate.dead_letter l
JOIN headgate.datasource d ON d.id = l.datasource AND NOT d.deleted
JOIN headgate.stream s ON s.id = l.stream
WHERE ($1::uuid[] IS NULL OR l.datasource = ANY ($1))
  AND ($2::text IS NULL OR l.stage = $2) AND ($3::text IS NULL OR l.field = $3)
  AND ($4::text IS NULL OR strpos(lower(l.reason), lower($4)) > 0) AND ($5::integer IS NULL OR l.version = $5)
  AND ($6::timestamptz IS NULL OR l.last_at >= $6) AND ($7::timestamptz IS NULL OR l.last_at < $7)
  AND ($8::uuid[] IS NULL OR l.id = ANY ($8))
  AND ($9::text IS NULL OR l.outcome = $9)
  AND ($10::timestamptz IS NULL OR (l.last_at, l.id) < ($10, $11::uuid))
ORDER BY l.last_at DESC, l.id DESC LIMIT $12
