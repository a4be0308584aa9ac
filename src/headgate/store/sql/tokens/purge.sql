-- The oldest stays for good: it shows that this database has had a token.
DELETE FROM headgate.token t
WHERE ended_at < now() - make_interval(secs => $1)
  AND EXISTS (SELECT FROM headgate.token o WHERE (o.created_at, o.id) < (t.created_at, t.id))
