-- A restart or a changed secret: start over, whatever was decided before.
UPDATE headgate.datasource SET restarts = $2, revision = $2, quarantine = NULL WHERE id = ANY ($1::uuid[])
