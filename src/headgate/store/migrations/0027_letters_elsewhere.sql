-- Replayed into another sink than the one that keeps the letter: that it is still open there does not open it here.
ALTER TABLE headgate.dead_letter ADD COLUMN is_elsewhere boolean NOT NULL DEFAULT false;
