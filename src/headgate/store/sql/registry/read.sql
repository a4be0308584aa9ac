SELECT installation, revision FROM headgate.registry
