SELECT bool_and(to_regclass('headgate.minute_' || to_char(day, 'YYYYMMDD')) IS NOT NULL) FROM (
    SELECT (now() AT TIME ZONE 'UTC')::date + n FROM generate_series(0, 1) AS n
) AS wanted (day)
