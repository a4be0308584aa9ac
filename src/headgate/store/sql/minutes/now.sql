-- The minute that is just over, by the server's clock: the same for all nodes. A write that is half a minute late belongs
-- to the next. If the clock was put back, time stands still until it is where it was, so that no minute is counted twice;
-- one that was wrong by more than a day is not waited for.
SELECT present.minute, present.now_s,
       to_regclass('headgate.minute_' || to_char(present.minute AT TIME ZONE 'UTC', 'YYYYMMDD')) IS NOT NULL AS has_day
FROM (
    SELECT extract(epoch FROM now())::float8 AS now_s, greatest(just.over, (
        SELECT max(minute) FROM headgate.minute
        WHERE datasource = '00000000-0000-0000-0000-000000000000'
          AND minute > just.over AND minute <= just.over + interval '1 day'
    )) AS minute
    FROM (SELECT date_trunc('minute', now() - interval '30 seconds') AS over) AS just
) AS present
