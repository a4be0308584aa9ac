"""Patterns that choose schemas and tables: `orders`, `sales.*`, `public.order_??`, `"Odd Name"`.

`*` stands for any characters and `?` for one. What is not in double quotes is folded to small letters, as SQL does. A
pattern without a dot means every table of that name and every schema of that name; with one, tables of the schema
before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from headgate.errors import ConfigError

_PART = r'(?:"(?:[^"]|"")+"|[^".])+'
_PATTERN = re.compile(rf"(?:({_PART})\.)?({_PART})")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern, as two expressions."""

    text: str
    schema: re.Pattern[str] | None  # None: any.
    name: re.Pattern[str]

    def is_table(self, schema: str, name: str) -> bool:
        """Whether a table is meant, by itself or with all of its schema."""
        if self.schema is not None:
            return bool(self.schema.fullmatch(schema) and self.name.fullmatch(name))
        return bool(self.name.fullmatch(name)) or self.is_schema(schema)

    def is_schema(self, schema: str) -> bool:
        """Whether a whole schema is meant."""
        if self.schema is not None:
            return self.name.pattern == "(?s:.*)" and bool(self.schema.fullmatch(schema))
        return bool(self.name.fullmatch(schema))


@lru_cache(maxsize=1000)
def pattern_of(text: str) -> Pattern:
    """A pattern that somebody wrote. Raises `ConfigError`."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is not a pattern of tables", hint="orders, sales.*, public.order_*")
    return Pattern(text, None if found[1] is None else _expression(found[1]), _expression(found[2]))


def _expression(part: str) -> re.Pattern[str]:
    """A part of a name: what is in quotes is meant as it stands."""
    made = []
    for piece in re.findall(r'"(?:[^"]|"")+"|[^"]+', part):
        if piece.startswith('"'):
            made.append(re.escape(piece[1:-1].replace('""', '"')))
        else:
            made.append("".join({"*": ".*", "?": "."}.get(sign, re.escape(sign)) for sign in piece.lower()))
    return re.compile(f"(?s:{''.join(made)})")


def is_meant(patterns: Iterable[str], schema: str, name: str) -> bool:
    """Whether any of the patterns means this table."""
    return any(pattern_of(text).is_table(schema, name) for text in patterns)


def is_schema_meant(patterns: Iterable[str], schema: str) -> bool:
    """Whether any of the patterns means this whole schema."""
    return any(pattern_of(text).is_schema(schema) for text in patterns)
