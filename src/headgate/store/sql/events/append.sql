INSERT INTO headgate.datasource_events (datasource, name, type, payload, actor)
SELECT u.datasource, u.name, u.type, u.payload, u.actor
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::json[], $5::text[]) WITH ORDINALITY
    AS u (datasource, name, type, payload, actor, o)
ORDER BY u.o
