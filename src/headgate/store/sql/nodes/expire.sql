-- It is lost, unless it has come back under its name already.
WITH gone AS (
    DELETE FROM headgate.node WHERE id = $1 AND beat = $2 RETURNING id, name, started_at
), lost AS (
    INSERT INTO headgate.lost_node (name)
    SELECT name FROM gone WHERE NOT EXISTS (
        SELECT FROM headgate.node n WHERE n.name = gone.name AND n.id <> gone.id AND n.started_at > gone.started_at AND NOT n.ended
    )
    ON CONFLICT DO NOTHING
)
SELECT id FROM gone
