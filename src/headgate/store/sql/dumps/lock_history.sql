-- Attempts of one dump are written one after another, until each is committed: a reader that goes on from a number
-- misses none.
SELECT pg_advisory_xact_lock(hashtextextended('headgate dump ' || $1::uuid, 0))
