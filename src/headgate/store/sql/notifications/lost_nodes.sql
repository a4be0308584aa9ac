-- One that came back in the very moment in which it was found dead has not seen the line, and could not remove it.
SELECT l.name FROM headgate.lost_node l
WHERE l.at > now() - $1::interval
  AND NOT EXISTS (SELECT FROM headgate.node n WHERE n.name = l.name AND NOT n.ended AND n.started_at > l.at - interval '10 seconds')
ORDER BY l.name
