SELECT headgate.drop_day_of_minutes((now() AT TIME ZONE 'UTC')::date - $1::integer)
