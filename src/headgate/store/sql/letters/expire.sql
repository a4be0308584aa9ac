-- Letters that have been kept long enough, in the time that their datasource says, or 30 days. Returns how many. Each datasource
-- is looked at alone, so that the index leads to what is old, however many others there are.
WITH kept AS (
    SELECT d.id, now() - headgate.interval_of(coalesce(v.options -> 'dead_letters' ->> 'keep', '30d')) AS before
    FROM headgate.datasource d
    LEFT JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
), old AS (
    SELECT l.id FROM kept k CROSS JOIN LATERAL (
        SELECT id FROM headgate.dead_letter
        WHERE datasource = k.id AND last_at < k.before AND outcome = 'open' AND replay IS NULL ORDER BY last_at LIMIT $1
    ) AS l LIMIT $1
), expired AS (
    UPDATE headgate.dead_letter l SET outcome = 'expired', outcome_at = now(), payload = NULL FROM old
    WHERE l.id = old.id AND l.outcome = 'open' AND l.replay IS NULL
    RETURNING l.id
)
SELECT count(*) FROM expired
