UPDATE headgate.message SET attempts = attempts + 1, due_at = now() + $2::interval, reason = $3 WHERE number = $1
