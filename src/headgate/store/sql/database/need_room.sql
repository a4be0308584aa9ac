-- A new table lies in new pages, so this needs room on the disk, however much is free in the pages of others. It is
-- taken back.
CREATE TABLE headgate.room AS
SELECT repeat(md5(n::text), 8) AS filling FROM generate_series(1, 4000) AS n
