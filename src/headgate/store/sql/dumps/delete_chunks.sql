DELETE FROM headgate.dump_chunk WHERE dump = $1 AND "table" = $2 AND ($3::integer[] IS NULL OR number = ANY ($3))
