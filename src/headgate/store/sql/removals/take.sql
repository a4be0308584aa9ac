-- What is due, for the node that comes first: nobody else takes it for a while ($2), so that a node that dies is followed.
UPDATE headgate.removal r SET attempts = r.attempts + 1, due_at = now() + $2::interval
FROM (
    SELECT stream, version FROM headgate.removal WHERE due_at <= now()
    ORDER BY due_at, stream, version LIMIT $1 FOR UPDATE SKIP LOCKED
) AS due, headgate.datasource d
WHERE r.stream = due.stream AND r.version = due.version AND d.id = r.datasource
RETURNING r.stream, r.version, r.datasource, d.name, r.attempts, extract(epoch FROM now() - r.since)::float8 AS age_s
