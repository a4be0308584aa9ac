-- Everything that a master key wraps and somebody may still need: what it is, whose, by which key, and how much of it.
SELECT 'secret' AS noun, name AS whose, key_id, 1 AS number FROM headgate.secret
UNION ALL
SELECT 'fixture', d.name || '/' || f.name, f.key_id, 1
FROM headgate.fixture f JOIN headgate.datasource d ON d.id = f.datasource
UNION ALL
SELECT 'dead letter', d.name, l.key_id, count(*)
FROM headgate.dead_letter l JOIN headgate.datasource d ON d.id = l.datasource AND NOT d.deleted
WHERE l.payload IS NOT NULL AND l.key_id IS NOT NULL GROUP BY d.name, l.key_id
UNION ALL
SELECT 'dump', left(id::text, 13), key_id, 1 FROM headgate.dump
WHERE ciphertext IS NOT NULL AND status NOT IN ('completed', 'cancelled')
ORDER BY noun, whose, key_id
