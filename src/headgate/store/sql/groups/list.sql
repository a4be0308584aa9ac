-- Groups that have anybody in them; one of them if its names are given.
SELECT g.id, g.stream, g.name, g.partition, g.lease_s, g.epoch, g.ignored, g.granted_to, g.lately, g.changed_at, g.vacant_since,
       g.fenced,
       coalesce(m.members, '[]') AS members
FROM headgate.consumer_group g
JOIN LATERAL (
    SELECT json_agg(json_build_object(
        'id', c.id, 'label', c.label, 'node', n.name, 'node_id', c.node, 'connectivity', c.connectivity,
        'activity', c.activity, 'epoch', c.epoch, 'incarnation', c.incarnation, 'answered', c.answered, 'muted', c.muted, 'trust_s', c.trust_s,
        'since', c.since) ORDER BY c.number) AS members
    FROM headgate.consumer c LEFT JOIN headgate.node n ON n.id = c.node AND NOT n.ended WHERE c."group" = g.id
) m ON m.members IS NOT NULL
WHERE ($1::text IS NULL OR g.stream = $1) AND ($2::text IS NULL OR g.name = $2)
ORDER BY g.stream, g.name LIMIT $3
