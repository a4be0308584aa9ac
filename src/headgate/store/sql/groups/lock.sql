-- `floor` is above every epoch that was ever granted in a group that has been removed since.
SELECT g.id, g.stream, g.name, g.partition, g.lease_s, g.epoch, g.ignored, g.lately, g.vacant_since, g.fenced, now() AS now,
       (SELECT group_epoch FROM headgate.registry) AS floor
FROM headgate.consumer_group g WHERE g.id = ANY ($1::uuid[]) ORDER BY g.id FOR UPDATE
