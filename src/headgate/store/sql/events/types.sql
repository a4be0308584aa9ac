-- The types that there are events of. Each is looked up after the one before it: there are few, and many events.
WITH RECURSIVE types AS (
    (SELECT type FROM headgate.datasource_events ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (SELECT e.type FROM headgate.datasource_events e WHERE e.type > t.type ORDER BY e.type LIMIT 1)
    FROM types t WHERE t.type IS NOT NULL
)
SELECT type FROM types WHERE type IS NOT NULL
