SELECT coalesce(sum(headgate.inbox_drop_handled(datasource, make_interval(secs => $1), $2)), 0)
FROM headgate.inbox_size WHERE rows > 0
