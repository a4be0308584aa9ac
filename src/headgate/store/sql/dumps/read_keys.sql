SELECT id, key_id, wrapped FROM headgate.dump WHERE ciphertext IS NOT NULL ORDER BY id FOR UPDATE
