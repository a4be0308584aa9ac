"""URLs with fields of a record: `https://api.example.com/users/{id}`.

A value is one piece of text in the place where it stands. It is percent-encoded, so it ends no segment of the path and
no parameter. What encoding does not cover is refused: an empty value and dots, which would lead to another path. Fields
may not stand before the path, so no value says which host is meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import UUID

from headgate.connectors.http.targets import Target, target_of

_FIELD = re.compile(r"\{([^{}/?&#]+)\}")
_SIMPLE = (str, int, float, Decimal, UUID, date)
_MARK = "headgate-field-{}"  # In the place of a field, while the URL around it is taken apart.


class NotInUrl(ValueError):
    """A record has no value that could stand in a URL. The field is named, the value is not."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


def fields_of(url: str) -> list[str]:
    """The fields that a URL has, in their order."""
    return _FIELD.findall(url)


def with_sample_values(url: str) -> str:
    """The URL as it could be, to be checked. Raises ValueError for fields where none may stand."""
    scheme, _, rest = url.partition("://")
    before = scheme + re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "{" in before or "}" in before:
        raise ValueError("has a field before its path, where it would say which host is meant")
    sample = _FIELD.sub("x", url)
    if "{" in sample or "}" in sample:
        raise ValueError("has a brace that belongs to no {field}")
    return sample


class Template:
    """A URL, taken apart once."""

    def __init__(self, url: str) -> None:
        self.fields = fields_of(url)
        names = iter(range(len(self.fields)))
        self._target = target_of(_FIELD.sub(lambda found: _MARK.format(next(names)), url))
        path = self._target.path
        self._pieces: list[str] = []
        for number in range(len(self.fields)):
            before, _, path = path.partition(_MARK.format(number))
            self._pieces.append(before)
        self._pieces.append(path)

    def of(self, record: Mapping[str, Any]) -> Target:
        """The URL of this record. Raises `NotInUrl`."""
        if not self.fields:
            return self._target
        pieces = [self._pieces[0]]
        for field, after in zip(self.fields, self._pieces[1:], strict=True):
            pieces += [_encoded(field, record), after]
        path = "".join(pieces)
        if any(segment in (".", "..") for segment in path.partition("?")[0].split("/")):
            raise NotInUrl(self.fields[0], "dots would lead to another path")
        return replace(self._target, path=path)


def _encoded(field: str, record: Mapping[str, Any]) -> str:
    value = record.get(field)
    if value is None:
        raise NotInUrl(field, "the URL needs it, and the record has none")
    if isinstance(value, bool):
        value = "true" if value else "false"
    elif not isinstance(value, _SIMPLE):
        raise NotInUrl(field, "only a text, a number, a date or a UUID can stand in a URL")
    try:
        text = quote(str(value), safe="")
    except UnicodeEncodeError:
        raise NotInUrl(field, "it is not valid Unicode") from None
    if not text:
        raise NotInUrl(field, "an empty text would lead to another path")
    return text
