-- Letters that have not been open for a long time. Their numbers stay. Returns how many. What the sink was not told stays for
-- a year: a run of a stream that was stopped until then would find the letter there, and count it once more.
WITH old AS (
    SELECT id FROM headgate.dead_letter WHERE outcome <> 'open' AND outcome_at < now() - $1::interval
      AND (told_at < now() - $1::interval OR NOT in_sink OR outcome NOT IN ('discarded', 'expired')
           OR outcome_at < now() - 12 * $1::interval)
    ORDER BY outcome_at LIMIT $2
), gone AS (
    DELETE FROM headgate.dead_letter l USING old WHERE l.id = old.id RETURNING l.stream, l.outcome
), counted AS (
    INSERT INTO headgate.dead_letter_past AS p (stream, outcome, letters)
    SELECT stream, outcome, count(*) FROM gone GROUP BY stream, outcome ORDER BY stream, outcome
    ON CONFLICT (stream, outcome) DO UPDATE SET letters = p.letters + excluded.letters
)
SELECT count(*) FROM gone
