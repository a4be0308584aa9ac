"""Names and texts as they stand in statements, by dialect."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A name in double quotes, as standard SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def backquoted(name: str) -> str:
    """A name in backquotes, as MySQL has it."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text where a backslash is only that, as standard SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def escaped_literal(text: str) -> str:
    """A text where the backslash is an escape, as MySQL has it."""
    return literal(text.replace("\\", "\\\\"))
