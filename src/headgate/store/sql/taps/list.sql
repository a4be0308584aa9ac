-- All taps. Those that nobody renews any more go, with what was on its way to them.
WITH old AS (
    SELECT id FROM headgate.tap WHERE expires_at <= now() FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM headgate.tap t USING old WHERE t.id = old.id
)
SELECT id, datasource, at, condition, sample FROM headgate.tap WHERE expires_at > now() ORDER BY id
