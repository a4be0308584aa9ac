-- Versions only rise: a late proof of an older one says nothing.
UPDATE headgate.datasource SET running_version = $2, revision = $3, streams = headgate.streams_of($1, $2)
WHERE id = $1 AND coalesce(running_version, 0) < $2 AND NOT deleted
