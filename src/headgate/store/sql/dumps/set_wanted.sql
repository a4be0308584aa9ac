UPDATE headgate.dump SET wanted = $2 WHERE id = $1 RETURNING id
