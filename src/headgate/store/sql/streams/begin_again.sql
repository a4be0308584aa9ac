-- A start is another chance: for nodes that were unable, and for sources that had come to an end.
WITH forgiven AS (
    DELETE FROM headgate.unable u USING headgate.stream s WHERE s.id = u.stream AND s.datasource = $1
)
UPDATE headgate.stream SET rests = NULL WHERE datasource = $1 AND rests IS NOT NULL
