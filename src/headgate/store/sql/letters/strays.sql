-- Pushed streams with letters that are to be replayed, which no program pushes now.
SELECT DISTINCT s.id AS stream, s.datasource, s.label FROM headgate.dead_letter l
JOIN headgate.stream s ON s.id = l.stream AND s.owner IS NULL AND s.label IS NOT NULL
JOIN headgate.datasource d ON d.id = s.datasource AND d.is_to_run
WHERE l.replay IS NOT NULL LIMIT $1
