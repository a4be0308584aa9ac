UPDATE headgate.notifications SET document = $1::json, version = version + 1, author = $2, changed_at = now() RETURNING version
