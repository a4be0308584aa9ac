UPDATE headgate.dump SET snapshot = $2, fuzzy = fuzzy OR $3 WHERE id = $1
