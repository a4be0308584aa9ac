-- Open letters that nobody needs, some at a time. Returns how many.
WITH chosen AS (
    SELECT l.id FROM headgate.dead_letter l
    WHERE l.datasource = ANY ($1::uuid[])
      AND ($2::text IS NULL OR l.stage = $2) AND ($3::text IS NULL OR l.field = $3)
      AND ($4::text IS NULL OR strpos(lower(l.reason), lower($4)) > 0) AND ($5::integer IS NULL OR l.version = $5)
      AND ($6::timestamptz IS NULL OR l.last_at >= $6) AND ($7::timestamptz IS NULL OR l.last_at < $7)
      AND ($8::uuid[] IS NULL OR l.id = ANY ($8))
      AND l.outcome = 'open'
    ORDER BY l.id LIMIT $10 FOR UPDATE
), discarded AS (
    UPDATE headgate.dead_letter l
    SET outcome = 'discarded', outcome_at = now(), actor = $9, payload = NULL, replay = NULL
    FROM chosen WHERE l.id = chosen.id RETURNING l.id
)
SELECT count(*) FROM discarded
