INSERT INTO headgate.dump
    (id, source, target, key_id, wrapped, ciphertext, options, datasource, rate, place, spread, actor)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
