SELECT id, datasource, index FROM headgate.stream WHERE datasource = ANY ($1::uuid[]) ORDER BY datasource, index
