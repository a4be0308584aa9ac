-- What this node could not run before it may run now.
DELETE FROM headgate.unable WHERE node = $1
