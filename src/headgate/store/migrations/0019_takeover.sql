-- An incarnation may be ended before its lease is over, if its beat is late and its lock is free. Its row stays until
-- the lease is over, because of the streams that only its trust protects.
ALTER TABLE headgate.node
    ADD COLUMN locked boolean NOT NULL DEFAULT false,  -- the session of its last beat holds the lock of this incarnation
    ADD COLUMN ended  boolean NOT NULL DEFAULT false;

-- Whether the sink of the last run refuses older epochs: then nobody has to wait for a lease.
ALTER TABLE headgate.stream ADD COLUMN transactional boolean NOT NULL DEFAULT false;
