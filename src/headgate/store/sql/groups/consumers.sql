SELECT id, "group", number, node, trust_s, label, connectivity, activity, epoch, incarnation, answered, muted
FROM headgate.consumer WHERE "group" = ANY ($1::uuid[]) ORDER BY "group", number LIMIT $2
