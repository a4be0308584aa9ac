SELECT coalesce(max(id), 0) FROM headgate.dump_attempt WHERE dump = $1
