SELECT coalesce(sum(rows), 0)::bigint AS rows, coalesce(sum(bytes), 0)::bigint AS bytes
FROM headgate.dump_attempt WHERE kind = 'completed'
