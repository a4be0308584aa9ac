-- What these datasources moved, in points of $4 minutes from $2 on: differences of totals. Each begins with its last line
-- before the first point. Where totals have fallen, because the registry went back in time, nothing is known to have moved.
WITH line AS (
    SELECT * FROM headgate.minute WHERE datasource = ANY ($1::uuid[]) AND minute >= $2 AND minute <= $3
    UNION ALL
    SELECT last.* FROM unnest($1::uuid[]) AS wanted (datasource) CROSS JOIN LATERAL (
        SELECT * FROM headgate.minute m WHERE m.datasource = wanted.datasource AND m.minute < $2 ORDER BY m.minute DESC LIMIT 1
    ) AS last
), moved AS (
    SELECT datasource, minute, bytes, backlog, lag_s,
           greatest(0, read - lag(read, 1, 0::bigint) OVER before) AS read,
           greatest(0, written - lag(written, 1, 0::bigint) OVER before) AS written,
           greatest(0, dead_lettered - lag(dead_lettered, 1, 0::bigint) OVER before) AS dead_lettered
    FROM line WINDOW before AS (PARTITION BY datasource ORDER BY minute)
)
SELECT datasource, point, sum(read)::bigint AS read, sum(written)::bigint AS written, sum(dead_lettered)::bigint AS dead_lettered,
       sum(bytes)::bigint AS bytes, max(backlog) AS backlog, max(lag_s) AS lag_s
FROM (
    SELECT *, CASE WHEN minute < $2 THEN -1 ELSE (extract(epoch FROM minute - $2)::integer / 60 / $4::integer) END AS point
    FROM moved
) AS placed
GROUP BY datasource, point ORDER BY datasource, point
