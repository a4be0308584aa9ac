-- What a deleted datasource leaves behind, once nobody holds its streams. What such a stream may have left in sinks is
-- removed later: in each that its datasource ever had, and not before its last holder has no trust any more ($1).
WITH gone AS (
    DELETE FROM headgate.stream s USING headgate.datasource d
    WHERE d.id = s.datasource AND d.deleted AND s.owner IS NULL
    RETURNING s.id, s.datasource, s.epoch
), in_sinks AS (
    INSERT INTO headgate.removal (stream, version, datasource, due_at)
    SELECT gone.id, sink.version, gone.datasource, now() + $1::interval FROM gone CROSS JOIN LATERAL (
        SELECT max(number) AS version FROM headgate.datasource_version
        WHERE datasource = gone.datasource AND status <> 'draft' GROUP BY sink::text
    ) AS sink
    WHERE gone.epoch > 0
    ON CONFLICT (stream, version) DO UPDATE SET due_at = greatest(removal.due_at, excluded.due_at)
), logs AS (
    DELETE FROM headgate.log_line l USING gone WHERE l.stream = gone.id
), histories AS (
    DELETE FROM headgate.stream_history h USING gone WHERE h.stream = gone.id
), sizes AS (
    DELETE FROM headgate.inbox_size i USING gone WHERE i.datasource = gone.datasource
), payloads AS (
    DELETE FROM headgate.inbox i USING gone WHERE i.datasource = gone.datasource
)
SELECT count(*) FROM gone
