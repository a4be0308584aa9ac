UPDATE headgate.node SET ended = true WHERE id = $1
