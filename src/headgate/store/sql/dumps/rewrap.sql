UPDATE headgate.dump SET key_id = $2, wrapped = $3 WHERE id = $1
