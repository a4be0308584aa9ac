UPDATE headgate.secret SET key_id = $2, wrapped_key = $3 WHERE name = $1
