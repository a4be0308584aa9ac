-- Open letters whose key is that of a later one of these.
SELECT o.id, l.id AS newer FROM headgate.dead_letter l
JOIN headgate.dead_letter o ON o.datasource = l.datasource AND o.key = l.key AND o.first_at < l.first_at AND o.outcome = 'open'
WHERE l.datasource = $1 AND l.id = ANY ($2::uuid[]) AND NOT o.id = ANY ($2::uuid[])
