UPDATE headgate.dump SET left_behind = $2 WHERE id = $1
