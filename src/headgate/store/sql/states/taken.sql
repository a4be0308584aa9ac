-- Those of these streams that a node has by now.
SELECT id FROM headgate.stream WHERE id = ANY ($1::uuid[]) AND owner IS NOT NULL
