"""What the registry says, against what this node was last told: the orders that make up the difference.

Orders are per datasource and carry the whole wish, so giving one twice is harmless. A datasource that did not change
costs nothing: only changed entries are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias
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

    @property
    def is_to_run(self) -> bool:
        """Whether a worker should exist."""
        return self.enabled and not self.deleted and self.wanted is not None and self.quarantine is None


@dataclass(frozen=True, slots=True)
class Run:
    """Have a worker, and let it pursue this."""

    datasource: UUID
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Halt:
    """Have no worker running."""

    datasource: UUID


@dataclass(frozen=True, slots=True)
class Forget:
    """Halt, and then know nothing of it any more."""

    datasource: UUID


Order: TypeAlias = Run | Halt | Forget


def reconcile(changed: Iterable[Entry], told: Mapping[UUID, Wanted | None]) -> list[Order]:
    """The orders for the entries that changed. `told` is what each known worker was last told."""
    orders: list[Order] = []
    for entry in changed:
        known = entry.datasource in told
        if entry.deleted:
            if known:
                orders.append(Forget(entry.datasource))
        elif entry.is_to_run:
            assert entry.wanted is not None
            if not known or told[entry.datasource] != entry.wanted:
                orders.append(Run(entry.datasource, entry.wanted))
        elif known and told[entry.datasource] is not None:
            orders.append(Halt(entry.datasource))
    return orders
