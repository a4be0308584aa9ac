-- One line of a stream's history; and whether the stream has been dealt other parts since.
SELECT h.position, EXISTS (SELECT FROM headgate.stream_history d
                           WHERE d.stream = h.stream AND d.kind = 'dealt' AND d.id > h.id) AS is_dealt_since
FROM headgate.stream_history h WHERE h.stream = $1 AND h.id = $2
