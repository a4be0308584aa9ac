-- Today and tomorrow; and the day of this minute, if there is one that is needed now.
SELECT headgate.make_day_of_minutes(day) FROM (
    SELECT ($1::timestamptz AT TIME ZONE 'UTC')::date
    UNION SELECT (now() AT TIME ZONE 'UTC')::date
    UNION SELECT (now() AT TIME ZONE 'UTC')::date + 1
) AS wanted (day) WHERE day IS NOT NULL
