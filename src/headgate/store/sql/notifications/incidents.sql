SELECT rule, subject, why, extract(epoch FROM since)::float8 AS since_s, extract(epoch FROM told_at)::float8 AS told_at_s, told_to,
       extract(epoch FROM better_since)::float8 AS better_since_s
FROM headgate.incident ORDER BY rule, subject
