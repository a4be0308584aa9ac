DELETE FROM headgate.log_line l
USING (
    SELECT u.stream, (SELECT k.id FROM headgate.log_line k WHERE k.stream = u.stream
                      ORDER BY k.id DESC OFFSET $2 LIMIT 1) AS last
    FROM unnest($1::uuid[]) AS u (stream)
) AS cut
WHERE l.stream = cut.stream AND l.id <= cut.last
