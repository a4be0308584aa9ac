-- A target that takes nothing gets the newest only.
DELETE FROM headgate.message WHERE number IN (
    SELECT number FROM (SELECT number, row_number() OVER (PARTITION BY target ORDER BY number DESC) AS place FROM headgate.message) AS placed
    WHERE place > $1
)
