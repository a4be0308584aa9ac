-- Which master key wraps the copy of a letter that its sink keeps, so that a rotation can be seen to its end. Null: that
-- copy is not encrypted, or there is none. Empty: nobody has looked yet.
ALTER TABLE headgate.dead_letter ADD COLUMN sink_key_id text;
UPDATE headgate.dead_letter SET sink_key_id = '' WHERE in_sink AND outcome = 'open' AND key_id IS NOT NULL;
CREATE INDEX dead_letter_wrapped ON headgate.dead_letter (sink_key_id, stream)
    WHERE outcome = 'open' AND sink_key_id IS NOT NULL;
