"""Texts with fields of a record in them, such as `orders.{kind}`: the name of a topic, or a routing key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PIECES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|([{}])")


class Template:
    """A text whose `{field}`s are those of a record. `{{` and `}}` stand for the braces themselves."""

    def __init__(self, text: str) -> None:
        """Raises `ValueError` for a brace that stands alone."""
        self.text = text
        self._pieces: list[tuple[str, bool]] = []  # Each with whether it is a field.
        at = 0
        for found in _PIECES.finditer(text):
            if found[2]:
                raise ValueError(f"has a {found[2]} that stands alone; write {found[2] * 2} for the sign itself")
            before = text[at : found.start()]
            self._pieces += [(before, False), (found[1], True) if found[1] else (found[0][0], False)]
            at = found.end()
        self._pieces.append((text[at:], False))
        self.is_constant = not any(is_field for _, is_field in self._pieces)
        self._constant = "".join(piece for piece, _ in self._pieces) if self.is_constant else ""

    def of(self, record: Mapping[str, Any]) -> str:
        """For this record. `ValueError` names the field that it has not, or that is no text or number."""
        if self.is_constant:
            return self._constant
        return "".join(_shown(record, piece) if is_field else piece for piece, is_field in self._pieces)


def _shown(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise ValueError(f"{field} is {'absent' if value is None else 'no text and no whole number'}")
