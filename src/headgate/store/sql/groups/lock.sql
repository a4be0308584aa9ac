-- Groups by id, and by stream and name. `floor` is above every epoch that was ever granted in a group that has been
-- removed since. A batch adds SKIP LOCKED.
WITH asked AS (
    SELECT unnest($1::uuid[]) AS id
    UNION
    SELECT g.id FROM unnest($2::text[], $3::text[]) AS n (stream, name)
    JOIN headgate.consumer_group g ON g.stream = n.stream AND g.name = n.name
)
SELECT g.id, g.stream, g.name, g.partition, g.lease_s, g.epoch, g.ignored, g.lately, g.vacant_since, g.fenced, now() AS now,
       (SELECT group_epoch FROM headgate.registry) AS floor
FROM headgate.consumer_group g WHERE g.id IN (SELECT id FROM asked) ORDER BY g.id FOR UPDATE OF g
