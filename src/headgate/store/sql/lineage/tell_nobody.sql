-- A copy tells nobody anything: the targets are those of its original.
WITH known AS (
    DELETE FROM headgate.incident
), waiting AS (
    DELETE FROM headgate.message
), lost AS (
    DELETE FROM headgate.lost_node
)
UPDATE headgate.notifications SET document = NULL, version = version + 1, sender = NULL WHERE document IS NOT NULL
