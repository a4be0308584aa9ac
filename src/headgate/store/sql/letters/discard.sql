UPDATE headgate.dead_letter l SET outcome = 'discarded', outcome_at = now(), actor = $9, payload = NULL, replay = NULL
WHERE l.datasource = ANY ($1::uuid[])
  AND ($2::text IS NULL OR l.stage = $2) AND ($3::text IS NULL OR l.field = $3)
  AND ($4::text IS NULL OR strpos(lower(l.reason), lower($4)) > 0) AND ($5::integer IS NULL OR l.version = $5)
  AND ($6::timestamptz IS NULL OR l.last_at >= $6) AND ($7::timestamptz IS NULL OR l.last_at < $7)
  AND ($8::uuid[] IS NULL OR l.id = ANY ($8))
  AND l.outcome = 'open'
RETURNING l.stream
