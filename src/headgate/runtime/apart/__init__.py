"""Connectors that have their own process (`runs="process"`): whatever one does, it does to its own process.

On the node's side `source` and `sink` look like any other; `process` starts the process, carries their calls to it, and
says how it ended. On the other side `warden` watches it and ends it with everything that it has started, and `child`
builds the connector and answers. `wire` is what the two say to each other, `values` how records go through it,
`failures` how errors do. Only what is in this line is sent: the options of one side, with its secrets, and nothing of
the registry, no master key, and no other datasource's secrets.
"""
