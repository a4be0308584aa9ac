"""Storages: what a dump reads from and writes to."""
