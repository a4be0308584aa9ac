-- What has ended is stopping until its holder has given it back, so that one shown as `STOPPED` can be edited or started.
SELECT st.*, s.index, s.label, n.name AS node_name, n.beat AS heartbeat,
       st.worker_status = 'STOPPED' AND s.owner IS NOT NULL AND s.epoch = st.epoch AS is_stopping
FROM headgate.datasource_state st
JOIN headgate.stream s ON s.id = st.stream
JOIN headgate.datasource d ON d.id = st.datasource AND (s.index IS NULL OR s.index < d.dealt)
LEFT JOIN headgate.node n ON n.id = st.node
WHERE $1::uuid IS NULL OR st.datasource = $1
ORDER BY st.datasource, s.index, s.label
