-- What the data of a stream's source and sink are known by, whatever their addresses (`core.identity`). Null: they have not
-- said so yet, or cannot.
ALTER TABLE headgate.stream
    ADD COLUMN source_mark text,
    ADD COLUMN sink_mark   text;
