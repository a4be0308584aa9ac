UPDATE headgate.removal SET due_at = now() + make_interval(secs => $4), reason = $5
WHERE datasource = $1 AND version = $2 AND stream = ANY ($3::uuid[])
