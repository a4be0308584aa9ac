"""Decisions: pure functions over frozen values. No clock, no I/O, no randomness, no logging."""
