SELECT sum(rows)::bigint AS rows, sum(bytes)::bigint AS bytes FROM (
    SELECT rows, bytes FROM headgate.dump_attempt WHERE kind = 'completed'
    UNION ALL SELECT rows, bytes FROM headgate.dump_deleted
) copied
