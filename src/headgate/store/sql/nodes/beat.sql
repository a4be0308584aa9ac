UPDATE headgate.node SET beat = beat + 1 WHERE id = $1 RETURNING beat
