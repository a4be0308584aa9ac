INSERT INTO headgate.wish AS w (stream, node)
SELECT u.stream, u.node FROM unnest($1::uuid[], $2::uuid[]) AS u (stream, node)
JOIN headgate.node n ON n.id = u.node AND NOT n.ended ORDER BY u.stream
ON CONFLICT (stream) DO UPDATE SET node = excluded.node, stepping = false WHERE NOT w.pinned
