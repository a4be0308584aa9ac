UPDATE headgate.dump SET until = NULL, owner = NULL WHERE id = $1 AND owner = $2
