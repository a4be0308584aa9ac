SELECT name, key_id, author, changed_at FROM headgate.secret ORDER BY name
