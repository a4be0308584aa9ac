DELETE FROM headgate.node WHERE id = $1 AND beat = $2 RETURNING id
