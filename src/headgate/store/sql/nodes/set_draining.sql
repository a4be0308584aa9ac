UPDATE headgate.node SET draining = $2 WHERE id = $1 RETURNING id
