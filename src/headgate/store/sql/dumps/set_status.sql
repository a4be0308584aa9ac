UPDATE headgate.dump SET status = $2, error = $3, ended_at = CASE WHEN $2 = 'running' THEN NULL ELSE now() END
WHERE id = $1
