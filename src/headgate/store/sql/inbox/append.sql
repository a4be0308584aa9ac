SELECT headgate.inbox_append($1, $2, $3, $4, $5, $6, $7, $8)
