UPDATE headgate.dump SET rate = $2 WHERE id = $1 RETURNING id
