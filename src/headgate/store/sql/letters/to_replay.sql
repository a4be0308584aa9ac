-- The oldest first. A run of an older version leaves them to the published one, which is about to run, unless it was rejected.
SELECT l.id, l.place, l.stage, l.version, l.key, l.key_id, l.payload, (l.replay ->> 'version')::integer AS with_version,
       coalesce((l.replay ->> 'overwrite')::boolean, false) AS overwrites
FROM headgate.dead_letter l
WHERE l.stream = $1 AND l.replay IS NOT NULL AND l.outcome = 'open' AND NOT EXISTS (
    SELECT FROM headgate.datasource d
    JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
    WHERE d.id = l.datasource AND v.number > $3::integer AND v.status = 'published'
)
ORDER BY l.first_at, l.id LIMIT $2
