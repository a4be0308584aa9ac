SELECT datasource, count(*) AS letters FROM headgate.dead_letter WHERE outcome = 'open' GROUP BY datasource
