DELETE FROM headgate.secret WHERE name = $1 RETURNING name
