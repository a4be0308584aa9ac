-- With the oldest transaction that is under way: what is not seen now, that one or a later one has written or will write.
SELECT installation, revision, pg_snapshot_xmin(pg_current_snapshot())::xid AS mark FROM headgate.registry
