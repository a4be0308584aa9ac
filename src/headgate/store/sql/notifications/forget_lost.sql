DELETE FROM headgate.lost_node WHERE at <= now() - $1::interval
