DELETE FROM headgate.removal WHERE stream = ANY($1::uuid[])
