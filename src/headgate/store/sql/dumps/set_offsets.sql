UPDATE headgate.dump_table SET top = $3, at = $4, planned = $5, size = $6 WHERE dump = $1 AND number = $2
