-- Dumps into this table of this target that are not finished.
SELECT DISTINCT d.id FROM headgate.dump d JOIN headgate.dump_table t ON t.dump = d.id
WHERE d.target = $1 AND t.target = ANY ($2::text[]) AND t.state <> 'done'
  AND d.status IN ('running', 'failed', 'incomplete')
