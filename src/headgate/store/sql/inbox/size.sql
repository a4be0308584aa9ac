SELECT rows, bytes FROM headgate.inbox_size WHERE datasource = $1
