"""A registry that went back in time, or is a copy: how that is noticed, and who may settle it.

A failover to a standby that lagged, or a backup that was restored, sets the registry back. Epochs, generations and the
ids of payloads would then be drawn a second time, below what sinks and sources have seen: streams would be fenced
forever, and new payloads skipped as old ones.

A database's *lineage* says which history its rows are a part of: the system identifier and the timeline of the server,
the database and the table. It changes when a standby is promoted, a backup is restored or a dump is read in, and at no
other time. The registry keeps the lineage that it was last at home in. While that is not the server's own, nothing is
granted and nothing is accepted.

An *era* is the time between two such breaks. Epochs and the ids of payloads are era and counter in one number, so all
that is drawn in a new era is above all that was ever drawn, and owners of the lost time are fenced by the next grant.
Generations rise into the era with the next edit, not by themselves: until then a sink that is ahead is right.

A failover looks exactly like a clone of the database that somebody made for tests, and a clone must never fence the
original's sinks. So only a *witness* begins an era by itself: a process, or a home folder, that knew this installation
in the registry's era or a later one. A clone is started elsewhere, by those who did not. Without a witness a person
decides between `adopt` (it is the installation, begin an era) and `fork` (it is another one, with nothing enabled).

A witness also remembers how far the server had written its log. A snapshot of a volume that is put back has the same
lineage, but its log ends before that. And a server with an older timeline than the witness has seen is the old primary,
come back after a failover: it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

COUNTER_BITS = 40  # Of an epoch or id: a million million of them in each era.
GENERATION_BITS = 20  # Sinks keep generations in 31 bits.
LAST_ERA = 2047  # With the generation it fills those; with an epoch, what JSON keeps exactly.


def first_epoch(era: int) -> int:
    """The number that no epoch and no id of an earlier era has reached."""
    return era << COUNTER_BITS


def era_of(epoch: int) -> int:
    """The era in which an epoch was drawn."""
    return epoch >> COUNTER_BITS


def next_generation(generation: int, epoch: int) -> int:
    """The generation after this one, for a stream whose epoch is of the present era."""
    return max(generation + 1, era_of(epoch) << GENERATION_BITS)


# What is compared.


@dataclass(frozen=True, slots=True)
class Lineage:
    """Which history the rows of a database are a part of."""

    system: str  # The server's identifier, drawn when its data were made; copies keep it.
    timeline: int  # Rises with every promotion and every recovery from a backup.
    database: int  # Its oid.
    table: int  # The oid of the registry: a dump that is read in makes another.

    def __str__(self) -> str:
        return f"{self.system}/{self.timeline}/{self.database}/{self.table}"

    @staticmethod
    def of(text: str) -> Lineage:
        """The lineage that was written down as this text."""
        system, timeline, database, table = text.split("/")
        return Lineage(system, int(timeline), int(database), int(table))


@dataclass(frozen=True, slots=True)
class Server:
    """The server that answers."""

    lineage: Lineage
    flushed: int  # Up to where its log is on disk.


@dataclass(frozen=True, slots=True)
class Kept:
    """What the registry's row says."""

    installation: UUID
    era: int
    lineage: Lineage | None  # None until the first node starts.


@dataclass(frozen=True, slots=True)
class Known:
    """What a witness remembers of an installation."""

    installation: UUID
    era: int
    lineage: Lineage
    flushed: int


# What is the case.


@dataclass(frozen=True, slots=True)
class Same:
    """The registry is the one that it was."""

    known: Known  # What a witness remembers from now on.


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """No node has ever worked with it: it is at home here."""


@dataclass(frozen=True, slots=True)
class WentBack:
    """The registry went back in time, and the one who asks is a witness: this era is to begin."""

    era: int


@dataclass(frozen=True, slots=True)
class Stranger:
    """The registry went back in time, or is a copy, and the one who asks cannot tell."""


@dataclass(frozen=True, slots=True)
class Outdated:
    """The server lives in a time that is over: a newer one has taken its place."""

    timeline: int
    known_timeline: int


Displacement: TypeAlias = WentBack | Stranger | Outdated
"""The registry is not at home, or not what it was: nothing may be done with it yet."""

Finding: TypeAlias = Same | Unclaimed | Displacement


def judge(server: Server, kept: Kept, known: Known | None) -> Finding:
    """What this server's registry is to somebody who remembers `known`, or nothing."""
    if known is not None and known.installation != kept.installation:
        known = None
    if kept.lineage is None and known is None:
        return Unclaimed()
    is_at_home = kept.lineage == server.lineage
    if known is None or known.era < kept.era:
        return Same(_now(server, kept)) if is_at_home else Stranger()
    if _is_older(server.lineage, known.lineage):
        return Outdated(server.lineage.timeline, known.lineage.timeline)
    is_known = server.lineage == known.lineage and kept.era == known.era and server.flushed >= known.flushed
    if is_at_home and is_known:
        return Same(_now(server, kept))
    return WentBack(known.era + 1)


def remember(known: Known | None, seen: Known) -> Known:
    """The better memory of the two: that of the later era, and within one history that of the later moment."""
    if known is None or seen.era > known.era:
        return seen
    if seen.era < known.era or seen.lineage != known.lineage:
        return known
    return seen if seen.flushed >= known.flushed else known


def _now(server: Server, kept: Kept) -> Known:
    return Known(kept.installation, kept.era, server.lineage, server.flushed)


def _is_older(server: Lineage, known: Lineage) -> bool:
    return server.system == known.system and server.timeline < known.timeline
