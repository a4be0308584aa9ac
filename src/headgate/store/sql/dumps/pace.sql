-- How much the last chunks of the last minute were, and how long ago the first of them began.
SELECT coalesce(sum(rows), 0)::bigint AS rows, coalesce(sum(bytes), 0)::bigint AS bytes,
       extract(epoch FROM now() - min(at - make_interval(secs => seconds)))::double precision AS span_s
FROM (
    SELECT rows, bytes, seconds, at FROM headgate.dump_attempt
    WHERE dump = $1 AND kind = 'completed' ORDER BY id DESC LIMIT 100
) last
WHERE at > now() - interval '1 minute'
