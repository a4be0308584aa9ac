-- A new tap, unless there are as many as there may be.
INSERT INTO headgate.tap (id, datasource, at, condition, sample, expires_at)
SELECT $1, $2, $3, $4, $5, now() + $6::interval
WHERE (SELECT count(*) FROM headgate.tap WHERE expires_at > now()) < $7::integer
RETURNING id
