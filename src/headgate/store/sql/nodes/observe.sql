SELECT id, beat, lease_s FROM headgate.node
