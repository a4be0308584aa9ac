-- What appends, drops or counts in this inbox goes one after the other.
SELECT pg_advisory_xact_lock(hashtextextended('inbox/' || $1::uuid, 0))
