"""What of an overview one page of the console shows: the first rows of those that fit, in an order.

A *window* is a search, a health, an order and how many rows. All who look through the same window, with the same
bounds, share the same bytes. An event has the names in their order if that has changed, the rows that are new in the
window, and of the others what has changed. So an open page costs what it shows, however many datasources there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from headgate.core.access import Bounds, Caller, may
from headgate.core.figures import HEALTHS
from headgate.web import sse
from headgate.web.subjects import sees

PAGE = 30  # Rows at first sight.
MOST_ROWS = 1000
MOST_SEARCH = 200
MOST_WORDS = 10  # Of a search that are looked for.
MOST_KEPT = 200  # Windows of one snapshot: anybody can think of another one, and gets it all the same.

Row: TypeAlias = dict[str, Any]
"""A datasource in one line, as JSON has it, or what has changed of it."""

Order: TypeAlias = Literal["health", "name", "rate", "written", "dead", "backlog", "lag", "last"]


class Window(msgspec.Struct, frozen=True):
    """What somebody looks at."""

    search: str = ""  # Words, all of which are in the row.
    health: str = ""
    order: Order = "health"  # Figures: the largest first. Otherwise by name, within a health the worst first.
    limit: int = PAGE


_FIGURES: Mapping[Order, str] = {
    "rate": "written_per_s",
    "written": "records_written",
    "dead": "records_dead_lettered",
    "backlog": "backlog_records",
    "lag": "lag_s",
    "last": "last_record_at_s",
}
_SEARCHED = ("health", "source_type", "sink_type", "node", "detail", "why")
_RANK = {health: rank for rank, health in enumerate(HEALTHS)}


class Windows:
    """The windows of one snapshot."""

    def __init__(
        self, rows: Mapping[str, Row], changed: Mapping[str, bytes], nodes: bytes, at_s: bytes, before: Windows | None
    ) -> None:
        self._rows, self._changed, self._nodes, self._at_s = rows, changed, nodes, at_s
        self._drawn: dict[tuple[Window, Bounds | None], tuple[list[str], int]] = {}
        self._before = {} if before is None else {key: names for key, (names, _) in before._drawn.items()}
        self._before_said = {} if before is None else {bounds: before._said(bounds) for bounds in before._seen}
        self._seen: dict[Bounds | None, tuple[list[str], bytes]] = {}
        kept = {} if before is None else before._words
        self._words: dict[str, str] = {name: kept[name] for name in kept if name in rows and name not in changed}
        self._texts: dict[tuple[str, Window, Bounds | None], bytes] = {}

    def rows(self, caller: Caller, window: Window) -> list[Row]:
        """The rows that it shows."""
        return [self._rows[name] for name in self._draw(caller, window)[0]]

    def counts(self, caller: Caller) -> dict[str, int]:
        """How many that this caller sees are how."""
        counts = dict.fromkeys(HEALTHS, 0)
        for name in self._ordered(caller)[0]:
            counts[self._rows[name]["health"]] += 1
        return counts

    def event(self, caller: Caller, window: Window, *, is_next: bool, zipped: bool = False) -> bytes:
        """For somebody who has seen the snapshot before (`is_next`), or none."""
        if zipped:
            plain = self.event(caller, window, is_next=is_next)
            return self._once(f"zipped {is_next}", window, caller, lambda: sse.zipped(plain))
        return self._once(str(is_next), window, caller, lambda: self._event(caller, window, is_next=is_next))

    def _event(self, caller: Caller, window: Window, *, is_next: bool) -> bytes:
        if is_next and self._is_same(caller, window):
            return sse.ALIVE
        return sse.event(self._text(caller, window, is_next=is_next))

    def _is_same(self, caller: Caller, window: Window) -> bool:
        """Whether the window shows what it showed before."""
        names, bounds = self._draw(caller, window)[0], caller.bounds
        is_shown = self._before.get((window, bounds)) == names and self._changed.keys().isdisjoint(names)
        return is_shown and self._before_said.get(bounds) == self._said(bounds)

    def _said(self, bounds: Bounds | None) -> tuple[bytes, bytes]:
        return self._seen[bounds][1], self._nodes

    def text(self, caller: Caller, window: Window) -> bytes:
        """All of it, as JSON."""
        return self._once("text", window, caller, lambda: self._text(caller, window, is_next=False))

    def _once(self, what: str, window: Window, caller: Caller, render: Callable[[], bytes]) -> bytes:
        key = (what, window, caller.bounds)
        if key not in self._texts:
            text = render()  # Which may draw, and so make room itself.
            _make_room(self._texts)
            self._texts[key] = text
        return self._texts[key]

    def _text(self, caller: Caller, window: Window, *, is_next: bool) -> bytes:
        names, matching = self._draw(caller, window)
        old = self._before.get((window, caller.bounds)) if is_next else None
        known = frozenset(old or ())
        rows = [text for name in names if (text := self._row(name, is_known=name in known))]
        order = b"null" if old == names else _encoded(names)
        nodes = self._nodes if may(caller, "see_all") else b"[]"
        sums = self._ordered(caller)[1]
        parts = (b",".join(rows), order, b"%d" % matching, sums, nodes, self._at_s)
        return b'{"rows":[%b],"order":%b,"matching":%b,%b,"nodes":%b,"at_s":%b}' % parts

    def _row(self, name: str, *, is_known: bool) -> bytes:
        return self._changed.get(name, b"") if is_known else _encoded(self._rows[name])

    def _draw(self, caller: Caller, window: Window) -> tuple[list[str], int]:
        key = (window, caller.bounds)
        if key not in self._drawn:
            fitting = self._fitting(self._ordered(caller)[0], window)
            _make_room(self._drawn)
            self._drawn[key] = (fitting[: window.limit], len(fitting))
        return self._drawn[key]

    def _ordered(self, caller: Caller) -> tuple[list[str], bytes]:
        """All that this caller sees, the worst first; and what is said of all of them together."""
        if caller.bounds not in self._seen:
            rows = self._rows
            names = sorted(rows if caller.bounds is None else (name for name in rows if sees(caller, name)))
            names.sort(key=lambda name: _RANK[rows[name]["health"]])
            self._seen[caller.bounds] = (names, self._sums(names))
        return self._seen[caller.bounds]

    def _sums(self, names: Iterable[str]) -> bytes:
        counts, per_s = dict.fromkeys(HEALTHS, 0), 0.0
        for name in names:
            one = self._rows[name]
            counts[one["health"]] += 1
            per_s += one["metrics"]["written_per_s"] or 0.0
        return b'"counts":%b,"written_per_s":%b' % (_encoded(counts), _encoded(round(per_s, 1)))

    def _fitting(self, names: Sequence[str], window: Window) -> list[str]:
        rows = self._rows
        found = [name for name in names if not window.health or rows[name]["health"] == window.health]
        for term in list(dict.fromkeys(window.search.lower().split()))[:MOST_WORDS]:
            found = [name for name in found if term in self._words_of(name)]
        if window.order == "name":
            found.sort()
        elif window.order != "health":
            figure = _FIGURES[window.order]
            found.sort(key=lambda name: -(rows[name]["metrics"][figure] or 0))
        return found

    def _words_of(self, name: str) -> str:
        if name not in self._words:
            one = self._rows[name]
            said = [name, *(one[field] or "" for field in _SEARCHED), *one["labels"]]
            self._words[name] = " ".join(said).lower()
        return self._words[name]


def _make_room(kept: dict[Any, Any]) -> None:
    """Forget what was made first. What is forgotten is made again, and sent as a whole."""
    while len(kept) >= MOST_KEPT:
        del kept[next(iter(kept))]


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)
