-- The oldest transaction that is under way: what this one does not see, that one or a later one has written or will write.
-- Numbers of another history say nothing.
SELECT headgate.lineage() AS lineage, pg_snapshot_xmin(pg_current_snapshot())::xid AS xid
