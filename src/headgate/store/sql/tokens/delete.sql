DELETE FROM headgate.token WHERE id = $1 RETURNING name
