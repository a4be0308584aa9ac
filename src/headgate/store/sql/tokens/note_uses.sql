UPDATE headgate.token SET used_at = now()
WHERE id = ANY($1) AND coalesce(used_at < now() - make_interval(secs => $2), true)
