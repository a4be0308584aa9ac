DELETE FROM headgate.node WHERE id = $1 RETURNING id
