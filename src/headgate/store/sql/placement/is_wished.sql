-- Whether anything should move that can.
SELECT EXISTS (
    SELECT FROM headgate.wish w JOIN headgate.stream s ON s.id = w.stream JOIN headgate.node n ON n.id = w.node
    WHERE s.owner <> w.node AND NOT n.draining AND NOT n.ended
      AND NOT EXISTS (SELECT FROM headgate.unable u WHERE u.stream = w.stream AND u.node = w.node)
)
