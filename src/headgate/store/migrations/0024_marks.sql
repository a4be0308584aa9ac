-- What the data of a stream's source and sink are known by, whatever their addresses (`core.identity`). Null: they have not
-- said so yet, or cannot.
ALTER TABLE headgate.stream
    ADD COLUMN source_mark text,
    ADD COLUMN sink_mark   text;

-- A sequence that is not logged may be empty on a standby that was promoted ("bad magic number"), and then nothing more
-- can be written to its table. New ones take their place, because a server on which that has happened cannot mend them.
ALTER TABLE headgate.log_line ALTER COLUMN id DROP IDENTITY;
ALTER TABLE headgate.log_line ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY;
ALTER SEQUENCE headgate.log_line_id_seq SET LOGGED;
SELECT setval('headgate.log_line_id_seq', max(id)) FROM headgate.log_line HAVING max(id) > 0;
ALTER TABLE headgate.tapped ALTER COLUMN id DROP IDENTITY;
ALTER TABLE headgate.tapped ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY;
ALTER SEQUENCE headgate.tapped_id_seq SET LOGGED;
SELECT setval('headgate.tapped_id_seq', max(id)) FROM headgate.tapped HAVING max(id) > 0;
