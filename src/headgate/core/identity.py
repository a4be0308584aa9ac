"""Which data a stream reads, and where it writes: known by their name, and by a mark that they keep.

With other data an old position means nothing, and a sink's own is not the newest. So a stream's row says which data its
position belongs to, and each grant compares.

The *name* is a hash of the options that say which data these are, a URL among them. It is known without asking anybody,
and as long as it stays the same, so do the data. But an address may change and the data stay: a host is added to the
URL, a standby takes over, a name is written with its port. So a system that can keeps a *mark*, an id that
moves with the data; a hash of it is in the row, too. If the name is another, the marks decide. A system that has to be
asked for its mark may be away: then nothing can be decided, and the grant waits.

Rows from before there were marks have a name only. They know data by their *other names*: those that the same options
would have had, had one of their hosts been the only one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Sameness: TypeAlias = Literal["same", "other", "unclear"]


@dataclass(frozen=True, slots=True)
class Marks:
    """What is known of some data besides their name."""

    mark: str | None = ""  # Empty: they have none, or cannot tell. None: nobody has asked them.
    other_names: tuple[str, ...] = ()


UNMARKED = Marks()


def compare(name: str | None, mark: str | None, given: str, marks: Marks) -> Sameness:
    """Whether the data of a row, with its name and mark, are the data that are given now."""
    if name is None or name == given:
        return "same"
    if mark:
        if marks.mark is None:
            return "unclear"
        return "same" if mark == marks.mark else "other"
    return "same" if name in marks.other_names else "other"


def kept(sameness: Sameness, mark: str | None, marks: Marks) -> str | None:
    """The mark for the row: the one that is given, or that of the row if the data are the same."""
    return marks.mark or (mark if sameness == "same" else None)
