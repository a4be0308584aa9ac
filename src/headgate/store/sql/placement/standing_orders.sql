-- Holders that were told to step down and have not yet.
SELECT s.id, s.owner, s.epoch, n.lease_s FROM headgate.wish w
JOIN headgate.stream s ON s.id = w.stream AND s.owner <> w.node
JOIN headgate.node n ON n.id = s.owner
WHERE w.stepping
