-- Send from now on, if nobody does: a sender whose node has ended is none. Returns nothing if there is nothing to do either.
UPDATE headgate.notifications SET sender = $1, sender_until = now() + $2::interval
WHERE (sender = $1 OR sender_until < now() OR NOT EXISTS (SELECT FROM headgate.node n WHERE n.id = sender AND NOT n.ended))
  AND (document IS NOT NULL OR EXISTS (SELECT FROM headgate.incident) OR EXISTS (SELECT FROM headgate.message))
RETURNING document, version, author, changed_at
