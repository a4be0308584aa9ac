-- The server's time, and the last minute that any node has written. Minutes of a clock that was wrong by more than a day
-- are not looked at.
SELECT extract(epoch FROM now())::float8 AS now_s, (
    SELECT extract(epoch FROM max(minute))::float8 FROM headgate.minute
    WHERE datasource = $1 AND minute > now() - interval '1 day' AND minute <= now() + interval '1 day'
) AS reported_s
