"""What happened, for a person who has to understand a failing seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

LAST = 40  # Events that a failure shows.


class Violation(Exception):
    """A guarantee does not hold. `about` names the nodes and streams whose story it is."""

    def __init__(self, guarantee: str, text: str, about: Iterable[str] = ()) -> None:
        super().__init__(f"{guarantee}: {text}")
        self.guarantee = guarantee
        self.text = text
        self.about = frozenset(about)


class Trace:
    """Every event of a run, and how many there were of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._events: list[tuple[float, tuple[str, ...], str, tuple[Any, ...]]] = []

    def add(self, now_s: float, about: tuple[str, ...], text: str, *args: Any) -> None:
        """Something happened to these nodes or streams. Formatted only when somebody reads it."""
        self._events.append((now_s, about, text, args))

    def count(self, kind: str) -> None:
        """One more of these, for the summary."""
        self.counts[kind] += 1

    def lines(self) -> Iterator[str]:
        """The whole story."""
        return map(_line, self._events)

    def last(self, about: frozenset[str], most: int = LAST) -> list[str]:
        """The last events of these nodes and streams; of everybody, if none is named."""
        found = [event for event in self._events if not about or about.intersection(event[1])]
        return [_line(event) for event in found[-most:]]


def _line(event: tuple[float, tuple[str, ...], str, tuple[Any, ...]]) -> str:
    now_s, about, text, args = event
    return f"{now_s:10.4f}  {' '.join(about):<22} {text.format(*args)}"
