-- How many payloads the inbox still has after the first id, up to the second.
SELECT count(*) FROM headgate.inbox WHERE datasource = $1 AND id > $2 AND id <= $3
