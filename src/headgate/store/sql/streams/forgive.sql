-- An edited stream is another chance for every node.
DELETE FROM headgate.unable WHERE stream = $1
