-- Consumers whose deadline runs: out of touch, forgotten, or with an order that they left unanswered.
SELECT c.id, c."group", c.connectivity, c.incarnation, c.epoch, c.muted, g.lease_s, c.trust_s,
       EXISTS (SELECT FROM headgate.node n WHERE n.id = c.node AND NOT n.ended) AS has_node
FROM headgate.consumer c JOIN headgate.consumer_group g ON g.id = c."group"
WHERE c.connectivity <> 'connected' OR c.muted
