DELETE FROM headgate.allowed WHERE kind = $1 AND value = $2 RETURNING value
