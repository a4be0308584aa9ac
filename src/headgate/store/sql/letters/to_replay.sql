SELECT l.*, (l.replay ->> 'version')::integer AS with_version, coalesce((l.replay ->> 'overwrite')::boolean, false) AS overwrites
FROM headgate.dead_letter l WHERE l.stream = $1 AND l.replay IS NOT NULL AND l.outcome = 'open'
ORDER BY l.first_at, l.id LIMIT $2
