SELECT d.status, count(*) AS dumps FROM headgate.dump d GROUP BY d.status
