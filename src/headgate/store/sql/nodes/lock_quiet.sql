-- The row of a node that seems gone, unless somebody is at it: a beat, or a grant. Nothing is waited for; we look again.
SELECT id, beat, lease_s, locked, ended FROM headgate.node WHERE id = $1 FOR UPDATE SKIP LOCKED
