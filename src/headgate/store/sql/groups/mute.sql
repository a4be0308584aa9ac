UPDATE headgate.consumer SET muted = true WHERE id = $1 AND epoch = $2 AND NOT answered
