-- What is numbered in the order of its making: readers ask for what is above the last number that they have seen.
SELECT setval(s.name, greatest(nextval(s.name), $1))
FROM (VALUES ('headgate.inbox_id'::regclass),
             (pg_get_serial_sequence('headgate.datasource_events', 'id')::regclass),
             (pg_get_serial_sequence('headgate.stream_history', 'id')::regclass)) AS s (name)
