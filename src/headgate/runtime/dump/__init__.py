"""Dumps: tables copied between storages in chunks that are written once, whatever crashes."""
