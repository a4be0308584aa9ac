-- Streams of this node with letters that somebody wants to have replayed; those whose sinks have to be told that letters were
-- given up just now, because their records are to go there too; and those whose sinks have letters that another master key
-- wraps. A run that begins later asks by itself.
SELECT DISTINCT l.stream FROM headgate.dead_letter l JOIN headgate.stream s ON s.id = l.stream AND s.owner = $1
WHERE l.replay IS NOT NULL
UNION
SELECT DISTINCT l.stream FROM headgate.dead_letter l JOIN headgate.stream s ON s.id = l.stream AND s.owner = $1
WHERE l.outcome <> 'open' AND l.outcome_at > now() - $2::interval AND l.in_sink AND l.outcome IN ('discarded', 'expired')
UNION
SELECT DISTINCT l.stream FROM headgate.dead_letter l JOIN headgate.stream s ON s.id = l.stream AND s.owner = $1
WHERE l.outcome = 'open' AND l.sink_key_id = ANY ($3::text[])
