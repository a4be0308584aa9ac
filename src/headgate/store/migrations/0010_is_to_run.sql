-- Whether a datasource should run somewhere. The tick, which grants its streams, and the nodes, which run them, both read
-- this column: two formulas for it would grant what is declined at once, again and again.
ALTER TABLE headgate.datasource ADD COLUMN is_to_run boolean NOT NULL GENERATED ALWAYS AS (
    enabled AND NOT deleted AND published_version IS NOT NULL AND quarantine IS NULL AND NOT dealing
) STORED;
