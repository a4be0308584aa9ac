-- Stands for the nodes that held something in the time that was lost: a node that has ended, and has a lease like the others.
INSERT INTO headgate.node (id, name, lease_s, version, ended)
SELECT $1, $2, coalesce(max(lease_s), $3), $4, true FROM headgate.node
