-- Streams that nodes run, as groups: who has each, who should, who cannot. One of them if its datasource and number are
-- given.
SELECT s.id, d.name AS datasource, s.index, s.owner, s.run, s.epoch, d.enabled, d.paused, d.quarantine, d.published_version,
       d.dealing, s.index >= d.dealt AS is_surplus,
       s.rests IS NOT NULL AND s.rests = headgate.wanted_key(d, s.index) AS rests,
       w.node AS preferred, coalesce(w.pinned, false) AS pinned,
       coalesce(w.stepping AND w.node <> s.owner, false) AS stepping,
       coalesce(v.options ->> 'assignment' = 'modulo', false) AS is_modulo,
       (SELECT h.at FROM headgate.stream_history h WHERE h.stream = s.id AND h.kind = 'granted'
        ORDER BY h.id DESC LIMIT 1) AS since,
       (SELECT coalesce(json_object_agg(u.node, u.reason), '{}') FROM headgate.unable u
        WHERE u.stream = s.id AND u.wanted_key = headgate.wanted_key(d, s.index)) AS unable
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
LEFT JOIN headgate.datasource_version v ON v.datasource = d.id AND v.number = d.published_version
LEFT JOIN headgate.wish w ON w.stream = s.id
WHERE NOT d.deleted AND s.index < d.dealt AND coalesce(v.source ->> 'type', '') <> $1
  AND ($2::text IS NULL OR (d.name = $2 AND s.index::text = $3))
ORDER BY d.name, s.index LIMIT $4
