SELECT id FROM headgate.consumer_group WHERE stream = $1 AND name = $2
