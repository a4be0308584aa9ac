SELECT id, beat, lease_s, draining FROM headgate.node
