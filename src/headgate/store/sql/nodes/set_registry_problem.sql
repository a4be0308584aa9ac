UPDATE headgate.node SET registry_problem = $2 WHERE id = $1
