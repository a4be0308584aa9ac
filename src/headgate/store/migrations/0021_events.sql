-- Events are read by name, which outlives the datasource, by type and by time, and are not kept for ever.
CREATE INDEX events_name ON headgate.datasource_events (name, id);
CREATE INDEX events_type ON headgate.datasource_events (type, id);
CREATE INDEX events_at ON headgate.datasource_events (at);

-- What was recorded stays as it was. Only housekeeping removes events, and says so for its own transaction.
CREATE OR REPLACE FUNCTION headgate.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('headgate.forgets_events', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'datasource_events is append only';
END $$;
