UPDATE headgate.session SET seen_at = now(), idle_at = now() + make_interval(secs => $2)
WHERE id IN (
    SELECT id FROM headgate.session
    WHERE id = ANY($1) AND NOT is_code AND idle_at > now() FOR UPDATE SKIP LOCKED
)
