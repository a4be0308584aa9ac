-- Whether a target needs this secret.
SELECT version FROM headgate.notifications
WHERE jsonb_path_exists(document::jsonb, '$.**."$secret" ? (@ == $name)', jsonb_build_object('name', $1::text))
