DELETE FROM headgate.tap WHERE id = ANY ($1::uuid[])
