-- The dumps of a deleted datasource: the process that runs one gives it up, and those that none runs are over at once.
UPDATE headgate.dump SET wanted = 'cancel', error = 'its datasource was deleted',
    status = CASE WHEN until > now() THEN status ELSE 'cancelled' END,
    ended_at = CASE WHEN until > now() THEN ended_at ELSE now() END
WHERE datasource = $1 AND status NOT IN ('completed', 'cancelled')
