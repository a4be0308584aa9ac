SELECT count(*) FROM headgate.wish w JOIN headgate.stream s ON s.id = w.stream WHERE s.owner <> w.node
