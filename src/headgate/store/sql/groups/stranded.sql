-- Connected as far as we know, but through a node that is gone.
SELECT c.id, c."group", c.losses FROM headgate.consumer c
WHERE c.connectivity = 'connected' AND NOT EXISTS (SELECT FROM headgate.node n WHERE n.id = c.node)
