SELECT id, epoch FROM headgate.stream WHERE owner = $1
