-- It is lost, unless it has come back under its name already.
WITH ended AS (
    UPDATE headgate.node SET ended = true WHERE id = $1 RETURNING id, name, started_at
)
INSERT INTO headgate.lost_node (name)
SELECT name FROM ended WHERE NOT EXISTS (
    SELECT FROM headgate.node n WHERE n.name = ended.name AND n.id <> ended.id AND n.started_at > ended.started_at AND NOT n.ended
)
ON CONFLICT DO NOTHING
