-- A restart or a changed secret: begin anew, whatever was decided against it before.
UPDATE headgate.datasource SET restarts = $2, revision = $2, quarantine = NULL WHERE id = ANY ($1::uuid[])
