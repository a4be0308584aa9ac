-- Streams that nodes have, with what is wished of them. Each weighs one, and one more for every thousand records a second.
SELECT s.id, s.owner, s.epoch, w.node AS preferred, coalesce(w.pinned, false) AS pinned,
       coalesce(w.stepping, false) AS stepping,
       1 + floor(coalesce((st.metrics ->> 'last_hour')::float, 0) / 3.6e6) AS weight,
       CASE WHEN v.options ->> 'assignment' = 'modulo' THEN s.index END AS number,
       ARRAY(SELECT node FROM headgate.unable u
             WHERE u.stream = s.id AND u.wanted_key = headgate.wanted_key(d, s.index)) AS unable
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
LEFT JOIN headgate.datasource_version p ON p.datasource = d.id AND p.number = d.published_version
LEFT JOIN headgate.datasource_version v
    ON v.datasource = d.id AND v.number = CASE WHEN p.status = 'rejected' THEN d.running_version ELSE p.number END
LEFT JOIN headgate.wish w ON w.stream = s.id
LEFT JOIN headgate.datasource_state st ON st.stream = s.id
WHERE s.owner IS NOT NULL AND s.label IS NULL
ORDER BY s.id
