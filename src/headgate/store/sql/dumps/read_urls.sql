SELECT key_id, wrapped, ciphertext FROM headgate.dump WHERE id = $1
