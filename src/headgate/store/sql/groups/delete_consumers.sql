DELETE FROM headgate.consumer WHERE id = ANY ($1::uuid[])
