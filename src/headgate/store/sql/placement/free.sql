-- Streams that should run and that nobody has, with the nodes that cannot run them and the one that should. Either all
-- of them, or those of $4. One whose source has ended has something to do again when letters of it are to be replayed.
SELECT s.id, s.owner, s.run, s.epoch, s.generation, s.commits, s.position, s.version, s.source_identity, s.sink_identity, s.rests,
       s.settled, s.transactional, s.records_read, s.records_written, s.records_filtered, s.records_dead_lettered, s.records_skipped,
       coalesce(u.nodes, '{}') AS unable, coalesce(u.lately, '{}') AS unable_lately, w.node AS preferred,
       CASE WHEN v.options ->> 'assignment' = 'modulo' THEN s.index END AS number
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
JOIN headgate.datasource_version p ON p.datasource = d.id AND p.number = d.published_version
JOIN headgate.datasource_version v
    ON v.datasource = d.id AND v.number = CASE WHEN p.status = 'rejected' THEN d.running_version ELSE p.number END
LEFT JOIN LATERAL (
    SELECT array_agg(node) AS nodes, array_agg(node) FILTER (WHERE at > now() - $3::interval) AS lately
    FROM headgate.unable WHERE stream = s.id AND wanted_key = headgate.wanted_key(d, s.index)
) u ON true
LEFT JOIN headgate.wish w ON w.stream = s.id
WHERE s.owner IS NULL AND s.label IS NULL AND ($4::uuid[] IS NULL OR s.id = ANY ($4))
  AND d.is_to_run AND s.index < d.dealt
  AND (s.rests IS DISTINCT FROM headgate.wanted_key(d, s.index)
       OR EXISTS (SELECT FROM headgate.dead_letter l WHERE l.stream = s.id AND l.replay IS NOT NULL))
  AND v.source ->> 'type' <> $1
ORDER BY s.id LIMIT $2 FOR UPDATE OF s SKIP LOCKED
