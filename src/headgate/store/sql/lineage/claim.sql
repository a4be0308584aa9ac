UPDATE headgate.registry SET lineage = headgate.lineage() WHERE lineage IS NULL
