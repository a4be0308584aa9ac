-- Streams that stay where their programs are connected.
SELECT owner, count(*) AS streams FROM headgate.stream WHERE owner IS NOT NULL AND label IS NOT NULL GROUP BY owner
