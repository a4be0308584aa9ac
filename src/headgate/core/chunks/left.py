"""What a dump has left behind: what the source has and the target does not, each with its reason.

"Completed" must be the whole truth, so code that cannot make something returns a `Left`, which is kept with the dump.
Some of it is excused: it was asked for, or another kind of database cannot have it. What has no excuse is a failure:
the rows are there, and the copy is not the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headgate.text import counted

SHOWN = 5  # Names of one kind that a line has.


class Excuse(StrEnum):
    """Why it is no failure that something was left behind."""

    NONE = ""
    ASKED = "asked"  # Somebody asked for it, or it needs what was excluded.
    KIND = "kind"  # The target is another kind of database.


@dataclass(frozen=True, slots=True)
class Left:
    """One thing that the target does not have."""

    kind: str  # In the singular, as a person says it: view, policy, index, partitioning.
    name: str = ""  # Without one, its table says it all: partitioning of payment.
    of: str = ""  # The table that it belongs to.
    why: str = ""
    excuse: Excuse = Excuse.NONE

    def __str__(self) -> str:
        return f"{label(self)} ({self.why})" if self.why else label(self)


def label(one: Left) -> str:
    """What it is, in words: `policy owner_only of orders`."""
    return " ".join([one.kind, *([one.name] if one.name else []), *(["of", one.of] if one.of else [])])


def excused(left: Iterable[Left], excuse: Excuse) -> list[Left]:
    """The same, where whatever has no other excuse has this one."""
    return [one if one.excuse else replace(one, excuse=excuse) for one in left]


def is_complete(left: Iterable[Left]) -> bool:
    """Whether nothing was left behind without an excuse."""
    return all(one.excuse for one in left)


def summed_up(left: Sequence[Left]) -> str:
    """All of it in one line: `3 views (a, b, c), 2 policies of orders (p, q), partitioning of payment`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in left:
        groups.setdefault((one.kind, one.of), []).append(one.name)
    return ", ".join(_group(kind, of, names) for (kind, of), names in groups.items())


def _group(kind: str, of: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return label(Left(kind, names[0], of))
    many = counted(len(names), kind, plural(kind)) + (f" of {of}" if of else "")
    said = [name for name in names if name][:SHOWN]
    more = " and more" if len(names) > SHOWN else ""
    return f"{many} ({', '.join(said)}{more})" if said else many


def plural(kind: str) -> str:
    """`policies`, `indexes`, `views`; the first noun of `default of a column`."""
    head, of, rest = kind.partition(" of ")
    if head.endswith("y"):
        many = f"{head[:-1]}ies" if head[-2:-1] not in "aeiou" else f"{head}s"
    else:
        many = f"{head}es" if head.endswith(("x", "s", "ch")) else f"{head}s"
    return f"{many}{of}{rest}"
