UPDATE headgate.node SET address = $2 WHERE id = $1
