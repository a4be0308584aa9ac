-- Orders that consumers on this node have not answered.
SELECT c.id, c."group", c.activity, c.epoch, c.incarnation, g.partition FROM headgate.consumer c
JOIN headgate.consumer_group g ON g.id = c."group"
WHERE c.node = $1 AND NOT c.answered AND c.connectivity = 'connected' AND c.activity <> 'waiting'
