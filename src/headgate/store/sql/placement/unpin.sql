DELETE FROM headgate.wish WHERE stream = $1 RETURNING pinned
