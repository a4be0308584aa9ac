SELECT id, name, role, created_at FROM headgate.token ORDER BY created_at, id
