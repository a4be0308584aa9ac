WITH known AS (SELECT token, count(*) AS number FROM headgate.token_address WHERE token = ANY($1) GROUP BY token),
     noted AS (
         INSERT INTO headgate.token_address (token, address)
         SELECT used.token, used.address
         FROM unnest($1::uuid[], $2::text[]) AS used (token, address)
         JOIN headgate.token t ON t.id = used.token
         LEFT JOIN known ON known.token = used.token
         WHERE coalesce(known.number, 0) < $3
         ORDER BY 1, 2  -- Nodes that note the same take their locks in the same order.
         ON CONFLICT DO NOTHING
         RETURNING token, address
     )
SELECT t.id, t.name, noted.address FROM noted JOIN headgate.token t ON t.id = noted.token ORDER BY t.name, noted.address
