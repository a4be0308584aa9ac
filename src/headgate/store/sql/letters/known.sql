SELECT id, outcome, is_elsewhere FROM headgate.dead_letter WHERE stream = $1 AND in_sink
