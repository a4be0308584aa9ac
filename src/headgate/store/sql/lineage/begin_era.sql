-- Revisions and the epochs of groups are above all earlier ones, as the rest is.
UPDATE headgate.registry
SET era = $1, era_began_at = now(), lineage = headgate.lineage(), group_epoch = greatest(group_epoch, $2), revision = greatest(revision, $2)
