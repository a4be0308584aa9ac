SELECT id, beat, lease_s, draining, locked, ended FROM headgate.node
