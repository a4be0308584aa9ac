"""Taps: live records for a person who looks, from the nodes that run the streams."""
