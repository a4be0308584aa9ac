UPDATE headgate.dump_table SET state = $3, job = $4, error = $5,
       started_at = CASE WHEN $3 = 'waiting' THEN NULL ELSE coalesce(started_at, now()) END,
       ended_at = CASE WHEN $3 IN ('done', 'failed') THEN now() END
WHERE dump = $1 AND number = $2
