SELECT name, key_id, wrapped_key, ciphertext FROM headgate.secret ORDER BY name FOR UPDATE
