-- Letters that have been kept long enough, in the time that their datasource says, or 30 days. Returns how many.
WITH old AS (
    SELECT l.id FROM headgate.dead_letter l JOIN headgate.datasource d ON d.id = l.datasource
    LEFT JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
    WHERE l.outcome = 'open' AND l.replay IS NULL
      AND l.last_at < now() - headgate.interval_of(coalesce(v.options -> 'dead_letters' ->> 'keep', '30d'))
    ORDER BY l.last_at LIMIT $1 FOR UPDATE OF l
), expired AS (
    UPDATE headgate.dead_letter SET outcome = 'expired', outcome_at = now(), payload = NULL FROM old WHERE dead_letter.id = old.id
    RETURNING dead_letter.id
)
SELECT count(*) FROM expired
