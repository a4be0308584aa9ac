"""Dumps: a copy of whole tables in chunks that resume where they broke."""
