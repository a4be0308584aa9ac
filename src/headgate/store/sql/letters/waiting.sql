-- The streams of a datasource with letters that are to be replayed, and whether a run is there to do it.
SELECT s.id AS stream, d.name, coalesce(s.label, s.index::text) AS part, count(*) AS letters, s.label IS NOT NULL AS is_pushed,
       s.owner IS NOT NULL AS is_owned,
       CASE WHEN s.label IS NOT NULL THEN v.source ->> 'type' = $2
            ELSE v.source ->> 'type' <> $2 AND s.index < d.dealt END AS is_used,
       coalesce((s.owner IS NULL OR s.epoch = st.epoch) AND st.worker_status = 'ERROR' AND st.detail = 'quarantined', false)
           AS is_quarantined
FROM headgate.dead_letter l
JOIN headgate.stream s ON s.id = l.stream
JOIN headgate.datasource d ON d.id = s.datasource
LEFT JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
LEFT JOIN headgate.datasource_state st ON st.stream = s.id
WHERE l.datasource = $1 AND l.replay IS NOT NULL AND l.outcome = 'open'
GROUP BY s.id, d.id, v.datasource, v.number, st.stream ORDER BY letters DESC, s.id LIMIT $3
