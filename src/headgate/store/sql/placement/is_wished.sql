SELECT EXISTS (
    SELECT FROM headgate.wish w JOIN headgate.stream s ON s.id = w.stream JOIN headgate.node n ON n.id = w.node
    WHERE s.owner <> w.node AND NOT n.draining
)
