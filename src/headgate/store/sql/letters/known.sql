SELECT id, outcome FROM headgate.dead_letter WHERE stream = $1 AND in_sink
