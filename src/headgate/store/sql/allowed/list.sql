SELECT kind, value, author, created_at FROM headgate.allowed ORDER BY kind, value
