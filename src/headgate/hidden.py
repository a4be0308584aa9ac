"""What this process must not say: the values of secrets that it has read, and the passwords in URLs that it was given.

A driver, or a connector of somebody else, may put a URL with its password into the text of an error. So whatever this
process says to people (log lines, events, states, answers) passes through `hide`, which covers every value that
`remember` was told. It is the last wall and not the first: values are kept out of texts where texts are made.

A value is found as it is, percent-encoded, escaped as in Python or JSON, line by line, and of a URL its password alone,
also as the header of HTTP's basic authentication. A short word that is a password is covered only where it stands as a
word: a password `post` must not take `postgresql` apart. Words of three characters or fewer are not covered.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from headgate.credentials import SHOWN, credentials_in
from headgate.text import error_line

T = TypeVar("T")

SHORTEST = 4
WORD = 12  # Letters and digits up to this length may be a word that other texts have in them.
MOST = 10_000  # Values. The oldest is forgotten, and remembered again when it is read again.


class Hidden:
    """Values, and where a text shows one. What it costs to look grows with the text, not with the number of values."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Connectors run in threads, and log from there.
        self._values: dict[str, tuple[str, ...]] = {}  # With the pieces to look for; oldest first.
        self._pieces: Counter[str] = Counter()  # How many values have each.
        self._lengths: dict[str, Counter[int]] = {}  # Of the pieces that begin with these characters.

    def remember(self, value: str) -> None:
        """Nobody may read this value from now on, nor the password in it if it is a URL."""
        if value not in self._values:
            self._add(value, [value, *(line for line in value.splitlines() if len(line) >= WORD), *_passwords(value)])

    def remember_url(self, url: str) -> None:
        """Nobody may read the password in this URL. The rest of it is no secret."""
        if url not in self._values:
            self._add(url, [*_passwords(url)])

    def hide(self, text: str) -> str:
        """The text without any of the values."""
        with self._lock:
            pieces, done, place = [], 0, 0
            while place <= len(text) - SHORTEST and self._lengths:
                if found := self._found(text, place):
                    pieces += [text[done:place], SHOWN]
                    place = done = place + found
                else:
                    place += 1
        return "".join([*pieces, text[done:]]) if pieces else text

    def _found(self, text: str, place: int) -> int:
        """The length of the longest value that begins here; 0: none does."""
        lengths = self._lengths.get(text[place : place + SHORTEST])
        if lengths is None:
            return 0
        fitting = (length for length in lengths if self._is_shown(text, place, length))
        return max(fitting, default=0)

    def _is_shown(self, text: str, place: int, length: int) -> bool:
        piece = text[place : place + length]
        return piece in self._pieces and not (_is_word(piece) and _is_inside(text, place, length))

    def _add(self, value: str, parts: list[str]) -> None:
        pieces = tuple({form for part in parts for form in _forms(part) if len(form) >= SHORTEST})
        with self._lock:
            if len(self._values) >= MOST:
                self._count(self._values.pop(next(iter(self._values))), -1)
            self._values[value] = pieces
            self._count(pieces, 1)

    def _count(self, pieces: tuple[str, ...], by: int) -> None:
        for piece in pieces:
            lengths = self._lengths.setdefault(piece[:SHORTEST], Counter())
            _add_to(self._pieces, piece, by)
            _add_to(lengths, len(piece), by)
            if not lengths:
                del self._lengths[piece[:SHORTEST]]


def _add_to(counter: Counter[T], key: T, by: int) -> None:
    counter[key] += by
    if not counter[key]:
        del counter[key]


def _passwords(url: str) -> Iterator[str]:
    for found in credentials_in(url):
        yield found
        yield unquote(found)
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if parts.password:
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password)}"
        yield base64.b64encode(pair.encode()).decode()


def _forms(part: str) -> set[str]:
    """How a text may show this."""
    plain = part.strip()
    return {plain, quote(plain, safe=""), quote(plain), repr(plain)[1:-1], json.dumps(plain)[1:-1]}


def _is_word(piece: str) -> bool:
    return len(piece) < WORD and piece.isalnum()


def _is_inside(text: str, place: int, length: int) -> bool:
    """Whether a letter or digit stands right before it or behind it."""
    return text[place - 1 : place].isalnum() or text[place + length : place + length + 1].isalnum()


_HIDDEN = Hidden()
remember, remember_url, hide = _HIDDEN.remember, _HIDDEN.remember_url, _HIDDEN.hide


def error_said(error: BaseException, most: int | None = None) -> str:
    """An error on a single line, for people. It is cut only when nothing of a value is left in it."""
    return hide(error_line(error))[:most]
