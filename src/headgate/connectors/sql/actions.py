"""What foreign keys do when the row that they refer to goes or changes: a few words, the same in every database."""

from __future__ import annotations

from headgate.connectors.api.bulk import StorageError

ACTIONS = frozenset({"NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT"})


def action(words: str) -> str:
    """These words, if they are such an action. They come from another database's catalog."""
    if words not in ACTIONS:
        raise StorageError(f"a foreign key cannot do {words[:40]!r}")
    return words
