"""Loops: each loads, steps, saves and performs."""
