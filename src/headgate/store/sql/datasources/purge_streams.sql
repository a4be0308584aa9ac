-- What a deleted datasource leaves behind, once nobody holds its streams.
WITH gone AS (
    DELETE FROM headgate.stream s USING headgate.datasource d
    WHERE d.id = s.datasource AND d.deleted AND s.owner IS NULL
    RETURNING s.id, s.datasource
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
