-- A holder writes under the epoch of its grant, the last of it too; what a newer grant has written stays.
INSERT INTO headgate.datasource_state AS st
    (stream, datasource, worker_status, detail, node, version, epoch, metrics, error, changed_at)
SELECT s.id, s.datasource, u.worker_status, u.detail, $1, u.version, u.epoch, u.metrics, u.error, now()
FROM unnest($2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::integer[], $7::json[], $8::json[])
    AS u (stream, epoch, worker_status, detail, version, metrics, error)
JOIN headgate.stream s ON s.id = u.stream AND s.epoch >= u.epoch
ORDER BY s.id
ON CONFLICT (stream) DO UPDATE SET worker_status = excluded.worker_status, detail = excluded.detail,
    node = excluded.node, version = excluded.version, epoch = excluded.epoch, metrics = excluded.metrics,
    error = excluded.error,
    changed_at = CASE WHEN (st.worker_status, st.detail) = (excluded.worker_status, excluded.detail)
                 THEN st.changed_at ELSE now() END
WHERE st.epoch <= excluded.epoch
RETURNING st.stream
