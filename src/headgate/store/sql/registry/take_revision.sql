UPDATE headgate.registry SET revision = revision + 1 RETURNING revision
