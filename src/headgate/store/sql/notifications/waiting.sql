SELECT DISTINCT ON (target) target, count(*) OVER (PARTITION BY target) AS messages, attempts, reason, due_at
FROM headgate.message ORDER BY target, number
