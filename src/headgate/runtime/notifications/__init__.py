"""Telling people: what is seen, what is told of it, and how it is sent."""
