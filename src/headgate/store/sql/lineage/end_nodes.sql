DELETE FROM headgate.node
