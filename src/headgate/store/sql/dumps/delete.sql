-- A dump that has ended, with its plan and its history; what it had copied stays counted.
WITH gone AS (
    DELETE FROM headgate.dump WHERE id = $1 AND status IN ('completed', 'cancelled') RETURNING id
), copied AS (
    SELECT coalesce(sum(a.rows), 0) AS rows, coalesce(sum(a.bytes), 0) AS bytes
    FROM headgate.dump_attempt a JOIN gone ON gone.id = a.dump WHERE a.kind = 'completed'
), counted AS (
    UPDATE headgate.dump_deleted d SET rows = d.rows + c.rows, bytes = d.bytes + c.bytes
    FROM copied c WHERE EXISTS (SELECT FROM gone)
)
SELECT id FROM gone
