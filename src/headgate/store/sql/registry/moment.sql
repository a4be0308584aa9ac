-- The revision; and the oldest transaction that is under way, in the history that this server writes.
SELECT revision, headgate.lineage() AS lineage, pg_snapshot_xmin(pg_current_snapshot())::xid AS xid FROM headgate.registry
