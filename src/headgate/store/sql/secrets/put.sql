INSERT INTO headgate.secret (name, key_id, wrapped_key, ciphertext, author) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE SET key_id = excluded.key_id, wrapped_key = excluded.wrapped_key,
    ciphertext = excluded.ciphertext, author = excluded.author, changed_at = now()
