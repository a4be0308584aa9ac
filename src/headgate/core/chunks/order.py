"""In which order tables are filled that refer to each other.

A table is filled after those that its foreign keys refer to. Where they refer to each other in a circle, or to
themselves, no order helps: those foreign keys must give way while rows are written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key, between two tables."""

    key: str
    child: str
    parent: str


@dataclass(frozen=True, slots=True)
class FillingOrder:
    """Tables in an order, what each is filled after, and the foreign keys that lie in a circle."""

    tables: tuple[str, ...]
    after: Mapping[str, frozenset[str]]
    circular: frozenset[str]


def ordered(tables: Iterable[str], references: Iterable[Reference]) -> FillingOrder:
    """The order of these tables. What has no reason to move stays where it was."""
    names = list(tables)
    among = [one for one in references if one.child in names and one.parent in names]
    parents: dict[str, set[str]] = defaultdict(set)
    for one in among:
        parents[one.child].add(one.parent)
    circular = {one.key for one in among if one.child in _reached(one.parent, parents)}
    after: dict[str, set[str]] = defaultdict(set)
    for one in among:
        if one.key not in circular:
            after[one.child].add(one.parent)
    found: dict[str, None] = {}
    while len(found) < len(names):  # No circle is left, so that each round finds one at least.
        found |= {name: None for name in names if after[name] <= found.keys()}
    return FillingOrder(tuple(found), {name: frozenset(after[name]) for name in names}, frozenset(circular))


def _reached(begin: str, parents: Mapping[str, Collection[str]]) -> set[str]:
    """The table, and all that its foreign keys lead to."""
    found, following = {begin}, [begin]
    while following:
        for name in parents.get(following.pop(), ()):
            if name not in found:
                found.add(name)
                following.append(name)
    return found
