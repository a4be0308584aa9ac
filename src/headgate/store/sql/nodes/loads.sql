-- What each node has to do: how many of its streams fail, and what they wrote in the last hour.
SELECT st.node AS id, count(*) FILTER (WHERE st.worker_status = 'ERROR') AS failed,
       coalesce(sum((st.metrics ->> 'last_hour')::bigint), 0)::bigint AS last_hour
FROM headgate.datasource_state st
JOIN headgate.stream s ON s.id = st.stream AND s.owner = st.node
GROUP BY st.node
