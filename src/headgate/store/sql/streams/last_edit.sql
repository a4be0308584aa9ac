-- The last edit; or, if parts have changed hands since, that.
SELECT kind, before FROM headgate.stream_history WHERE stream = $1 AND kind IN ('edited', 'dealt')
ORDER BY id DESC LIMIT 1
