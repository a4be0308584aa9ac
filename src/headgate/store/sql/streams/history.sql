SELECT id, at, kind, actor, epoch, generation, commits, position, before FROM headgate.stream_history
WHERE stream = $1 ORDER BY id DESC LIMIT $2
