-- The oldest message of each target, if it is time for it: those behind it wait, so that they arrive in order.
SELECT number, id, target, body, attempts, extract(epoch FROM now() - created_at)::float8 AS age_s FROM (
    SELECT DISTINCT ON (target) * FROM headgate.message ORDER BY target, number
) AS first WHERE due_at <= now()
