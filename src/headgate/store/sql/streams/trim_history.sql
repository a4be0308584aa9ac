-- The latest lines of each stream stay, however old they are.
DELETE FROM headgate.stream_history h
WHERE h.at < now() - $1::interval
  AND h.id <= (SELECT id FROM headgate.stream_history WHERE stream = h.stream ORDER BY id DESC OFFSET $2 LIMIT 1)
