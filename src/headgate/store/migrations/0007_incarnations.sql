-- A consumer's number rises with every loss of touch; on the wire it has always been called its incarnation.
ALTER TABLE headgate.consumer RENAME COLUMN losses TO incarnation;
