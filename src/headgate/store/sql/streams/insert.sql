INSERT INTO headgate.stream (id, datasource, index) VALUES ($1, $2, $3)
