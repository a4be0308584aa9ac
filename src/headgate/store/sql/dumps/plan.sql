-- How far a table is planned, and a chunk more; only by the process that runs the dump.
WITH ours AS (SELECT id FROM headgate.dump WHERE id = $1 AND owner = $2 AND epoch = $3 FOR SHARE),
chunk AS (
    INSERT INTO headgate.dump_chunk (dump, "table", number, lo, hi)
    SELECT $1, $4, u.number, u.lo, u.hi FROM ours, unnest($5::integer[], $6::json[], $7::json[]) AS u (number, lo, hi)
)
UPDATE headgate.dump_table t SET at = $8, planned = $9, size = $10 FROM ours WHERE t.dump = $1 AND t.number = $4
RETURNING t.number
