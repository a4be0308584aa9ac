-- Connected as far as we know, but through a node that is gone. Nodes are few and consumers may be many: the index
-- names each node once, and only the consumers of those that are gone are read.
WITH RECURSIVE named AS (
    (SELECT node FROM headgate.consumer ORDER BY node LIMIT 1)
    UNION ALL
    SELECT (SELECT c.node FROM headgate.consumer c WHERE c.node > named.node ORDER BY c.node LIMIT 1)
    FROM named WHERE named.node IS NOT NULL
), gone AS MATERIALIZED (
    SELECT node FROM named WHERE node IS NOT NULL AND NOT EXISTS (SELECT FROM headgate.node n WHERE n.id = named.node AND NOT n.ended)
)
SELECT c.id, c."group", c.incarnation FROM gone
CROSS JOIN LATERAL (SELECT id, "group", incarnation FROM headgate.consumer
                    WHERE node = gone.node AND connectivity = 'connected' OFFSET 0) c
