SELECT headgate.inbox_drop_handled($1, $2, make_interval(secs => $3), $4)
