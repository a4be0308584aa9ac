-- Which of these have something after their position: one query for all the webhooks of a node.
SELECT u.datasource
FROM unnest($1::uuid[], $2::bigint[]) AS u (datasource, id)
WHERE EXISTS (SELECT FROM headgate.inbox i WHERE i.datasource = u.datasource AND i.id > u.id)
