SELECT datasource FROM headgate.inbox_size WHERE rows > 0 ORDER BY datasource
