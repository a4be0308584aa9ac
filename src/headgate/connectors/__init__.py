"""Connectors: each one file that speaks one protocol. `api` is the public contract."""
