DELETE FROM headgate.wish WHERE stream = ANY ($1::uuid[]) AND NOT pinned
