SELECT id, "group", incarnation FROM headgate.consumer WHERE node = $1 AND connectivity = 'connected'
