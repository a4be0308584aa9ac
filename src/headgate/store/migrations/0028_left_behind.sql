-- What the source of a dump has and its target has not, each with a reason.
ALTER TABLE headgate.dump ADD COLUMN left_behind json NOT NULL DEFAULT '[]';
