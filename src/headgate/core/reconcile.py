"""What the registry wants, as one node sees it: which of its workers should run, and with which version.

The answer is a whole wish, not a difference. A worker that is told the same wish twice does nothing, so whoever calls
this may do so as often as it likes, and for those entries only that changed.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    quarantine: str | None = None  # Set aside, and why, until a publish, a changed secret or a restart.
    is_pushed: bool = False  # Programs push its streams; no node reads them by itself.

    @property
    def is_to_run(self) -> bool:
        """Whether it should run somewhere."""
        return self.enabled and not self.deleted and self.wanted is not None and self.quarantine is None

    @property
    def wish(self) -> str:
        """A name for what is wished: it changes with a publish, a restart and a changed secret."""
        return f"{self.wanted.published}/{self.wanted.mark}" if self.wanted is not None else ""


@dataclass(frozen=True, slots=True)
class Place:
    """What this node adds to it."""

    is_draining: bool = False
    lists: bool = True  # Whether the registry in use on this node, file or database, names the datasource.


def wanted_here(entry: Entry | None, place: Place, *, is_pushed: bool) -> Wanted | None:
    """What a worker on this node should run. `is_pushed` says which kind of stream the worker serves."""
    if entry is None or not entry.is_to_run or entry.is_pushed != is_pushed:
        return None
    return None if place.is_draining or not place.lists else entry.wanted
