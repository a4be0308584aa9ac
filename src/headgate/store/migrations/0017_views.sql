-- When a stream's newest batch became durable, where thousands of streams are summed up.
ALTER TABLE headgate.datasource_state ADD COLUMN last_record_at_s double precision
    GENERATED ALWAYS AS ((metrics ->> 'last_record_at_s')::double precision) STORED;

-- What is wrong with the registry file of a node, so that every node can say so. Null: nothing, or it has no such file.
ALTER TABLE headgate.node ADD COLUMN registry_problem text;
