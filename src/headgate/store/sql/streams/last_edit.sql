SELECT before FROM headgate.stream_history WHERE stream = $1 AND kind = 'edited' ORDER BY id DESC LIMIT 1
