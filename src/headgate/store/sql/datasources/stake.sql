-- What would be lost with a datasource: payloads that were answered 202 and that its sink is not known to have, open dead
-- letters, and its dumps that are not over. A position of another source than a webhook ($2) says nothing of payloads.
SELECT (SELECT count(*) FROM headgate.inbox i WHERE i.datasource = $1 AND i.id > coalesce((
            SELECT (position #>> '{}')::bigint FROM headgate.stream
            WHERE datasource = $1 AND index = 0 AND source_identity = $2 AND position #>> '{}' ~ '^[0-9]{1,18}$'
        ), 0)) AS payloads,
       (SELECT count(*) FROM headgate.dead_letter WHERE datasource = $1 AND outcome = 'open') AS letters,
       ARRAY(SELECT id FROM headgate.dump WHERE datasource = $1 AND status NOT IN ('completed', 'cancelled')
             ORDER BY created_at, id) AS dumps
