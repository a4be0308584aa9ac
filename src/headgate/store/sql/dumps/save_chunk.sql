UPDATE headgate.dump_chunk SET state = $4, epoch = $5, worker = $6, until = to_timestamp($7), attempts = $8, rows = $9,
       bytes = CASE WHEN $10::bigint IS NULL THEN bytes ELSE $10 END, error = $11
WHERE dump = $1 AND "table" = $2 AND number = $3
