SELECT owner, count(*) AS streams FROM headgate.stream WHERE owner IS NOT NULL GROUP BY owner
