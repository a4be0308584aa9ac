-- Groups that nobody has been in for a while. Their epochs live on in the registry's floor.
WITH gone AS (
    DELETE FROM headgate.consumer_group g
    WHERE changed_at < now() - $1::interval AND NOT EXISTS (SELECT FROM headgate.consumer c WHERE c."group" = g.id)
    RETURNING epoch
)
UPDATE headgate.registry SET group_epoch = (SELECT max(epoch) FROM gone)
WHERE group_epoch < (SELECT max(epoch) FROM gone)
