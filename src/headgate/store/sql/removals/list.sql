-- What waits, for people: of each sink how many streams, since when, and why it was not done.
SELECT d.name, r.version, count(*) AS streams, max(r.attempts) AS attempts,
       (array_agg(r.reason ORDER BY r.due_at) FILTER (WHERE r.reason IS NOT NULL))[1] AS reason
FROM headgate.removal r JOIN headgate.datasource d ON d.id = r.datasource
GROUP BY d.id, d.name, r.version ORDER BY d.name, d.id, r.version
