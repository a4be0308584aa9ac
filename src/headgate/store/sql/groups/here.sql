SELECT id, "group", losses FROM headgate.consumer WHERE node = $1 AND connectivity = 'connected'
