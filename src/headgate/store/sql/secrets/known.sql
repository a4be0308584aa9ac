SELECT name FROM headgate.secret WHERE name = ANY ($1::text[])
