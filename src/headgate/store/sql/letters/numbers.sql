-- What became of the letters of each datasource.
SELECT datasource, outcome, sum(letters)::bigint AS letters FROM (
    SELECT datasource, outcome, count(*) AS letters FROM headgate.dead_letter
    WHERE $1::uuid IS NULL OR datasource = $1 GROUP BY datasource, outcome
    UNION ALL
    SELECT s.datasource, p.outcome, p.letters FROM headgate.dead_letter_past p JOIN headgate.stream s ON s.id = p.stream
    WHERE $1::uuid IS NULL OR s.datasource = $1
) AS letters GROUP BY datasource, outcome
