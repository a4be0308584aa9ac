SELECT id FROM headgate.stream WHERE id = ANY ($1::uuid[]) AND owner IS NULL
