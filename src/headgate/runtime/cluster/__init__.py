"""Nodes: their beats, how they watch each other, and what any of them does for all."""
