DELETE FROM headgate.node WHERE process = $1 RETURNING id
