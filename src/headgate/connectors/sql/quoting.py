"""Names and texts as they stand in statements, by dialect.

Every name that is not our own comes into a statement through these. Whatever it contains, it ends where we end it: the
sign that would end it is doubled, and a NUL, at which a server may stop reading, is refused.
"""

from __future__ import annotations

from headgate.errors import ConfigError


def quoted(name: str) -> str:
    """A name in double quotes, as standard SQL has it."""
    return '"' + _readable(name).replace('"', '""') + '"'


def backquoted(name: str) -> str:
    """A name in backquotes, as MySQL has it."""
    return "`" + _readable(name).replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text where a backslash is only that, as standard SQL has it."""
    return "'" + _readable(text).replace("'", "''") + "'"


def escaped_literal(text: str) -> str:
    """A text where the backslash is an escape, as MySQL has it. A text may have a NUL there."""
    return literal(text.replace("\\", "\\\\").replace("\0", "\\0"))


def _readable(text: str) -> str:
    if "\0" in text:
        raise ConfigError(f"the name {text[:40]!r} has a NUL, which no database allows", hint="rename it, or drop it")
    return text
