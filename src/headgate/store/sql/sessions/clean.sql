DELETE FROM headgate.session WHERE id IN (
    SELECT s.id FROM headgate.session s JOIN headgate.token t ON t.id = s.token
    WHERE s.expires_at <= now() OR s.idle_at <= now() OR t.ended_at IS NOT NULL OR t.expires_at <= now()
    FOR UPDATE OF s SKIP LOCKED
)
