UPDATE headgate.dump_table SET at = $3, planned = $4, size = $5 WHERE dump = $1 AND number = $2
