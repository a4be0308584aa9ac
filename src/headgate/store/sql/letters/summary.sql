-- Open letters by what is wrong with them, the largest heaps first; and of which datasources each is.
SELECT d.name, l.stage, l.field, l.reason, l.version, count(*) AS letters, min(l.first_at) AS first_at, max(l.last_at) AS last_at,
       count(*) FILTER (WHERE l.replay IS NOT NULL) AS waiting
FROM headgate.dead_letter l
JOIN headgate.datasource d ON d.id = l.datasource AND NOT d.deleted
WHERE ($1::uuid[] IS NULL OR l.datasource = ANY ($1))
  AND ($2::text IS NULL OR l.stage = $2) AND ($3::text IS NULL OR l.field = $3)
  AND ($4::text IS NULL OR strpos(lower(l.reason), lower($4)) > 0) AND ($5::integer IS NULL OR l.version = $5)
  AND ($6::timestamptz IS NULL OR l.last_at >= $6) AND ($7::timestamptz IS NULL OR l.last_at < $7)
  AND ($8::uuid[] IS NULL OR l.id = ANY ($8)) AND l.outcome = 'open'
GROUP BY d.name, l.stage, l.field, l.reason, l.version
ORDER BY letters DESC, d.name, l.stage, l.field, l.reason, l.version LIMIT $9
