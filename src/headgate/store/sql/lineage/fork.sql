-- Another installation, with nothing enabled. Its sinks know nothing of it.
UPDATE headgate.registry SET installation = $1, lineage = headgate.lineage(), revision = revision + 1
RETURNING revision
