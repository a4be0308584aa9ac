DELETE FROM headgate.session WHERE id IN (
    SELECT id FROM headgate.session WHERE token = $1 AND is_code = $2
    ORDER BY created_at DESC, id OFFSET $3 FOR UPDATE SKIP LOCKED
)
