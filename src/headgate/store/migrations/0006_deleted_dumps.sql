-- What dumps that were deleted had copied: a counter never goes back. One row.
CREATE TABLE headgate.dump_deleted (
    id    boolean PRIMARY KEY DEFAULT true CHECK (id),
    rows  bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0
);
INSERT INTO headgate.dump_deleted DEFAULT VALUES;
