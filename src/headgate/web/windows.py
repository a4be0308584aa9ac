"""What of an overview one page of the console shows: the first rows of those that fit, in an order.

A *window* is a search, a health, an order and how many rows. All who look through the same window, with the same
bounds, share the same bytes. An event has the names in their order if that has changed, the rows that are new in the
window, and of the others what has changed. So an open page costs what it shows, however many datasources there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
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

_Key: TypeAlias = tuple[float, int, str]

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


@dataclass(frozen=True, slots=True)
class Changes:
    """How the rows of a snapshot differ from those before."""

    texts: Mapping[str, bytes]  # What differs, as JSON, by name. New rows are among them.
    old: Mapping[str, Row]  # The rows of these names as they were, if they were; and those that are gone.
    gone: Set[str]


@dataclass(frozen=True, slots=True)
class _Ordered:
    """All names in one order."""

    keys: Mapping[str, _Key]
    names: Sequence[str]

    @classmethod
    def of(cls, order: Order, rows: Mapping[str, Row]) -> _Ordered:
        keys = {name: _key(order, row) for name, row in rows.items()}
        return cls(keys, sorted(keys, key=keys.__getitem__))

    def after(self, order: Order, rows: Mapping[str, Row], changes: Changes) -> _Ordered:
        """The same after these changes: only what has another place is sorted."""
        keys = {name: _key(order, rows[name]) for name in changes.texts}
        moved = {name: key for name, key in keys.items() if self.keys.get(name) != key}
        if not moved and not changes.gone:
            return self
        out = moved.keys() | changes.gone
        kept = dict(self.keys)
        for name in changes.gone:
            del kept[name]
        kept.update(moved)
        names = [name for name in self.names if name not in out]
        names += sorted(moved, key=moved.__getitem__)
        names.sort(key=kept.__getitem__)  # Two runs in order, which it merges.
        return _Ordered(kept, names)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What somebody sees of all of them together."""

    names: Set[str] | None  # None: all.
    counts: Mapping[str, int]  # By health.
    hundredths: int  # Records written in a second. Whole numbers, so that it does not matter how they were added up.

    def after(self, caller: Caller, rows: Mapping[str, Row], changes: Changes) -> _Seen:
        """The same after these changes."""
        if not changes.texts and not changes.gone:
            return self
        names = self.names
        if names is not None:
            new = {name for name in changes.texts if name not in changes.old and sees(caller, name)}
            names = (names | new) - changes.gone if new or changes.gone else names
        counts, hundredths = dict(self.counts), self.hundredths
        for name, old in changes.old.items():
            if self.names is None or name in self.names:
                counts[old["health"]] -= 1
                hundredths -= _hundredths(old)
        for name in changes.texts:
            if names is None or name in names:
                counts[rows[name]["health"]] += 1
                hundredths += _hundredths(rows[name])
        return _Seen(names, counts, hundredths)

    @classmethod
    def of(cls, caller: Caller, rows: Mapping[str, Row]) -> _Seen:
        names = None if caller.bounds is None else {name for name in rows if sees(caller, name)}
        counts, hundredths = dict.fromkeys(HEALTHS, 0), 0
        for name in rows if names is None else names:
            counts[rows[name]["health"]] += 1
            hundredths += _hundredths(rows[name])
        return cls(names, counts, hundredths)

    @property
    def text(self) -> bytes:
        """As a part of an event."""
        return b'"counts":%b,"written_per_s":%b' % (_encoded(self.counts), _encoded(round(self.hundredths / 100, 1)))


def _key(order: Order, one: Row) -> _Key:
    """What rows are ordered by. Of two that are alike the worse one comes first, and then the one whose name does."""
    if order == "name":
        return (0.0, 0, one["name"])
    figure = 0.0 if order == "health" else -(one["metrics"][_FIGURES[order]] or 0)
    return (figure, _RANK[one["health"]], one["name"])


def _hundredths(one: Row) -> int:
    return round((one["metrics"]["written_per_s"] or 0.0) * 100)


class Windows:
    """The windows of one snapshot. What was asked of the one before is made of that, and of what has changed."""

    def __init__(
        self, rows: Mapping[str, Row], changes: Changes, nodes: bytes, at_s: bytes, before: Windows | None
    ) -> None:
        self._rows, self._changes, self._nodes, self._at_s = rows, changes, nodes, at_s
        self._drawn: dict[tuple[Window, Bounds | None], tuple[list[str], int]] = {}
        self._seen: dict[Bounds | None, _Seen] = {}
        self._ordered: dict[Order, _Ordered] = {}
        self._words: dict[str, str] = {}
        self._texts: dict[tuple[str, Window, Bounds | None], bytes] = {}
        # Of the one before.
        self._before: Mapping[tuple[Window, Bounds | None], tuple[list[str], int]] = {}
        self._before_said: Mapping[Bounds | None, tuple[bytes, bytes]] = {}
        self._before_seen: Mapping[Bounds | None, _Seen] = {}
        self._before_ordered: Mapping[Order, _Ordered] = {}
        if before is not None:
            self._before = before._drawn
            self._before_said = {bounds: (seen.text, before._nodes) for bounds, seen in before._seen.items()}
            self._before_seen, self._before_ordered = before._seen, before._ordered
            out = changes.texts.keys() | changes.gone
            self._words = {name: words for name, words in before._words.items() if name not in out}

    def rows(self, caller: Caller, window: Window) -> list[Row]:
        """The rows that it shows."""
        return [self._rows[name] for name in self._draw(caller, window)[0]]

    def counts(self, caller: Caller) -> Mapping[str, int]:
        """How many that this caller sees are how."""
        return self._of(caller).counts

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
        drawn, bounds = self._draw(caller, window), caller.bounds
        is_shown = self._before.get((window, bounds)) == drawn and self._changes.texts.keys().isdisjoint(drawn[0])
        return is_shown and self._before_said.get(bounds) == (self._of(caller).text, self._nodes)

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
        old, _ = self._before.get((window, caller.bounds), (None, 0)) if is_next else (None, 0)
        known = frozenset(old or ())
        rows = [text for name in names if (text := self._row(name, is_known=name in known))]
        order = b"null" if old == names else _encoded(names)
        nodes = self._nodes if may(caller, "see_all") else b"[]"
        parts = (b",".join(rows), order, b"%d" % matching, self._of(caller).text, nodes, self._at_s)
        return b'{"rows":[%b],"order":%b,"matching":%b,%b,"nodes":%b,"at_s":%b}' % parts

    def _row(self, name: str, *, is_known: bool) -> bytes:
        return self._changes.texts.get(name, b"") if is_known else _encoded(self._rows[name])

    def _draw(self, caller: Caller, window: Window) -> tuple[list[str], int]:
        key = (window, caller.bounds)
        if key not in self._drawn:
            fitting = self._fitting(caller, window)
            _make_room(self._drawn)
            self._drawn[key] = (list(fitting[: window.limit]), len(fitting))
        return self._drawn[key]

    def _of(self, caller: Caller) -> _Seen:
        """All that this caller sees."""
        bounds = caller.bounds
        if bounds not in self._seen:
            old = self._before_seen.get(bounds)
            rows, changes = self._rows, self._changes
            self._seen[bounds] = _Seen.of(caller, rows) if old is None else old.after(caller, rows, changes)
        return self._seen[bounds]

    def _in_order(self, order: Order) -> Sequence[str]:
        if order not in self._ordered:
            old, rows, changes = self._before_ordered.get(order), self._rows, self._changes
            self._ordered[order] = _Ordered.of(order, rows) if old is None else old.after(order, rows, changes)
        return self._ordered[order].names

    def _fitting(self, caller: Caller, window: Window) -> Sequence[str]:
        rows, seen, found = self._rows, self._of(caller).names, self._in_order(window.order)
        if seen is not None:
            found = [name for name in found if name in seen]
        if window.health:
            found = [name for name in found if rows[name]["health"] == window.health]
        for term in list(dict.fromkeys(window.search.lower().split()))[:MOST_WORDS]:
            found = [name for name in found if term in self._words_of(name)]
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
