-- The state of the dump, for whoever runs it; nothing if another does by now.
UPDATE headgate.dump SET until = now() + $4::interval WHERE id = $1 AND owner = $2 AND epoch = $3
RETURNING status, wanted, rate
