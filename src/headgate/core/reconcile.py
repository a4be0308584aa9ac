"""What the registry wants, as one node sees it: which of its workers should run, and with which version.

The answer is all that is wanted, not a difference. A worker that is told the same twice does nothing, so the caller may
ask as often as it likes, and for those entries only that changed.

A datasource runs, is *paused* or is *stopped*. Of one that is paused nothing is wanted, as of one that is stopped; but
its doors take what comes, as those of one that runs: webhooks are kept in the inbox, and programs stay connected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from headgate.core.lifecycle import Wanted


@dataclass(frozen=True, slots=True)
class Entry:
    """One datasource, as the registry has it."""

    datasource: UUID
    name: str
    revision: int
    enabled: bool
    deleted: bool
    wanted: Wanted | None  # None: nothing has been published.
    is_to_run: bool  # Whether it should run somewhere: the row says so, to nodes and to the tick alike.
    is_pushed: bool = False  # Programs push its streams; no node reads them by itself.
    dealt: int = 1  # How many streams read it,
    is_dealing: bool = False  # and whether they are to stop, so that there can be more or fewer.
    is_paused: bool = False  # Nobody is to read it, and `is_to_run` is false; but it is enabled.

    @property
    def is_open(self) -> bool:
        """Whether its doors take what comes. Only a stop or a delete closes them: a pause does not."""
        return self.enabled and not self.deleted

    def wanted_of(self, index: int) -> Wanted | None:
        """What a stream should run: the first proves a published version, the others follow once it has."""
        wanted = self.wanted
        if index == 0 or wanted is None or wanted.running is None:
            return wanted
        return Wanted(published=wanted.running, running=wanted.running, restarts=wanted.restarts)

    def wanted_key_of(self, index: int) -> str:
        """A key for what is wanted of a stream: it changes with a publish, a restart and a changed secret."""
        wanted = self.wanted_of(index)
        return f"{wanted.published}/{wanted.restarts}" if wanted is not None else ""


@dataclass(frozen=True, slots=True)
class Place:
    """What this node adds to it."""

    is_draining: bool = False
    lists: bool = True  # Whether the registry in use on this node, file or database, names the datasource.


def wanted_here(
    entry: Entry | None, place: Place, *, is_pushed: bool, index: int = 0, dealt: int | None = None
) -> Wanted | None:
    """What a worker on this node should run. `is_pushed` says which kind of stream it serves, `index` which one.

    `dealt` is the number of streams that there were when the worker began. If there are more or fewer by now, nothing
    is wanted of it: it would read the parts of an old deal. Its stream is granted again, and a new worker begins.
    """
    if entry is None or not entry.is_to_run or entry.is_pushed != is_pushed or index >= entry.dealt:
        return None
    if dealt not in (None, entry.dealt):
        return None
    return None if place.is_draining or not place.lists else entry.wanted_of(index)


def why_given_back(entry: Entry | None, place: Place) -> Literal["draining", "paused", "stopped"]:
    """Why a stream ended that its program still wants: what the program is told."""
    if place.is_draining:
        return "draining"
    return "paused" if entry is not None and entry.is_paused else "stopped"
