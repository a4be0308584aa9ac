SELECT name, key_id, wrapped_key, ciphertext FROM headgate.secret WHERE name = ANY ($1::text[])
