-- An attempt keeps the range that it was about: chunks are cut again, and their numbers with them.
ALTER TABLE headgate.dump_attempt ADD COLUMN lo json, ADD COLUMN hi json;
UPDATE headgate.dump_attempt a SET lo = c.lo, hi = c.hi
FROM headgate.dump_chunk c WHERE c.dump = a.dump AND c."table" = a."table" AND c.number = a.chunk;

-- The chunks that a retry is for; null: all of them.
ALTER TABLE headgate.dump_table ADD COLUMN listed integer[];
