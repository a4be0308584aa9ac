"""Streams that programs push: sessions, and the feeds that their records wait in."""
