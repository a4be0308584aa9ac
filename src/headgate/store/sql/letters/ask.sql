-- Have open letters replayed, some at a time, in the order of their ids. Where the key is not known, only if newer rows
-- may be overwritten. Returns how many, and the last of them.
WITH chosen AS (
    SELECT l.id FROM headgate.dead_letter l
    WHERE l.datasource = ANY ($1::uuid[])
      AND ($2::text IS NULL OR l.stage = $2) AND ($3::text IS NULL OR l.field = $3)
      AND ($4::text IS NULL OR strpos(lower(l.reason), lower($4)) > 0) AND ($5::integer IS NULL OR l.version = $5)
      AND ($6::timestamptz IS NULL OR l.last_at >= $6) AND ($7::timestamptz IS NULL OR l.last_at < $7)
      AND ($8::uuid[] IS NULL OR l.id = ANY ($8))
      AND l.outcome = 'open' AND ($10 OR l.key IS NOT NULL) AND l.id > $11
    ORDER BY l.id LIMIT $12 FOR UPDATE
), asked AS (
    UPDATE headgate.dead_letter l SET replay = $9::json FROM chosen WHERE l.id = chosen.id RETURNING l.id
)
SELECT count(*) AS letters, max(id::text)::uuid AS last FROM asked
