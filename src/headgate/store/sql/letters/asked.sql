-- Streams of this node with letters that somebody wants to have replayed.
SELECT DISTINCT l.stream FROM headgate.dead_letter l JOIN headgate.stream s ON s.id = l.stream AND s.owner = $1
WHERE l.replay IS NOT NULL
