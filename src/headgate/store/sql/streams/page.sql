-- Streams with how they do, in the order of their names, after the one that was shown last. Those that nobody needs to
-- see are left out, as in `list`.
SELECT s.*, d.name, n.name AS node, n.ended AS is_ended, d.enabled, d.paused,
       st.worker_status, st.detail, st.error ->> 'message' AS error, st.last_record_at_s, s.epoch = st.epoch AS is_told,
       w.node AS wished, w.pinned, m.name AS wished_name
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
LEFT JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
LEFT JOIN headgate.datasource_state st ON st.stream = s.id
LEFT JOIN headgate.node n ON n.id = s.owner
LEFT JOIN headgate.wish w ON w.stream = s.id
LEFT JOIN headgate.node m ON m.id = w.node
WHERE NOT d.deleted AND (s.index IS NULL OR s.index < d.dealt)
  AND NOT (s.label IS NULL AND s.epoch = 0 AND coalesce(v.source ->> 'type', '') = $1)
  AND ($2::uuid[] IS NULL OR d.id = ANY ($2))
  AND ($3::text IS NULL OR strpos(lower(d.name || ':' || coalesce(s.label, s.index::text)), lower($3)) > 0)
  AND ($4::text IS NULL OR n.name = $4 OR n.id::text = $4)
  AND CASE $5::text WHEN 'owned' THEN s.owner IS NOT NULL
                    WHEN 'free' THEN s.owner IS NULL
                    WHEN 'moving' THEN w.node <> s.owner
                    WHEN 'pinned' THEN coalesce(w.pinned, false)
                    WHEN 'failed' THEN coalesce(st.worker_status = 'ERROR', false)
                    ELSE true END
  AND ($6::text IS NULL OR (d.name, coalesce(s.index, 2147483647), coalesce(s.label, '')) > ($6, $7::integer, $8::text))
ORDER BY d.name, coalesce(s.index, 2147483647), coalesce(s.label, '') LIMIT $9
