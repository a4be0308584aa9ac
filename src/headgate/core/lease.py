"""Who is alive, decided without comparing clocks.

A node's row in PostgreSQL is one *incarnation*. While it lives it adds one to its `beat` every second and states its
lease. Two questions follow, and each is answered on one clock only.

*May I act?* (`Trust`.) A node trusts itself until the **sending time** of its last answered beat, plus its lease, minus
a margin. The sending time, because the answer may have been under way for long; the margin, because the observers'
clocks may run a little faster. A beat that finds no row says that somebody ended this incarnation: trust is over for
good, and the node goes on as a new incarnation with nothing.

*Is that one dead?* (`Observer`.) An observer reads all beats twice a second and expires a node whose beat it has seen
unchanged for that node's lease on the observer's own clock. The proof must be unbroken: after a failed or late answer
every count starts over, since a silent database looks exactly like a silent node. So a restart of PostgreSQL expires
nobody.

Trust ends `MARGIN_S` before the earliest moment at which anyone may expire the node: it stops acting before another
may begin.

*Is it gone already?* (`quiet`, `is_gone`.) A lease is long, and the kernel knows at once that a process has died: it
closes the session of the beat, and with it a lock that this session holds. Two signs together end an incarnation before
its lease is over. Its beat is *quiet*: unchanged for `QUIET_S`, as seen by an observer that has seen it rise since its
counts last started over. And its lock is free, which the ending transaction finds out by taking it. Neither is enough
on its own: a beat may be late on a busy machine, and a session that breaks is back within a second. A node that holds
no lock, because a pooler is in between or another session of its own still has it, says so in its row.

Even so the process may be alive: it may have lost its way to the database and nothing else. So an incarnation that was
ended early is *ended*, not gone. Its beats are refused and nothing is granted to it; but its row stays until its lease
is over, or until the process itself says that its runs have ended, and until then it keeps the streams that only its
trust protects. `core.streams.TakeOver` says which those are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

BEAT_S = 1.0
OBSERVE_S = 0.5
LEASE_S = 5.0
MARGIN_S = 1.0
SHORTEST_LEASE_S = 3.0  # A beat, a margin, and a second for the answer: with less, a healthy node would lose its trust.
QUIET_S = 1.2  # A beat and a fifth: one that is later than this is the first of the two signs that its node is gone.
SILENT_S = 2.5  # A node whose beat stood still for this long gets no new streams; it may still be alive.
LATE_S = 2.0  # An answer later than this proves nothing about what happened meanwhile.


# May I act?


@dataclass(frozen=True, slots=True)
class Trust:
    """One incarnation's trust in itself."""

    incarnation: UUID
    lease_s: float = LEASE_S
    margin_s: float = MARGIN_S
    sent_at_s: float | None = None  # When the last answered beat was sent.
    ended: bool = False  # Somebody ended this incarnation.

    @property
    def until_s(self) -> float:
        """The moment at which trust ends; minus infinity if there is none."""
        if self.ended or self.sent_at_s is None:
            return float("-inf")
        return self.sent_at_s + self.lease_s - self.margin_s

    def left_s(self, now_s: float) -> float:
        """How long this node may still act; zero if it may not."""
        return max(0.0, self.until_s - now_s)


def beat_answered(trust: Trust, sent_at_s: float) -> Trust:
    """The database took the beat that was sent then. Only a later sending time extends trust."""
    if trust.ended or (trust.sent_at_s is not None and sent_at_s <= trust.sent_at_s):
        return trust
    return replace(trust, sent_at_s=sent_at_s)


def beat_refused(trust: Trust) -> Trust:
    """The beat found no row: this incarnation is over."""
    return replace(trust, ended=True)


# Is that one dead?


@dataclass(frozen=True, slots=True)
class Sighting:
    """A beat, and since when it has been seen unchanged."""

    beat: int
    since_s: float
    has_risen: bool = False  # Since the counts last started over.


@dataclass(frozen=True, slots=True)
class NodeBeat:
    """What a node's row says."""

    node: UUID
    beat: int
    lease_s: float
    has_lock: bool = False  # The session of its last beat holds the lock of this incarnation.
    is_ended: bool = False  # Before its lease was over.


@dataclass(frozen=True, slots=True)
class Expired:
    """A node that was seen silent for its whole lease, and the beat it fell silent at."""

    node: UUID
    beat: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """A node whose beat is late, and the beat it has stopped at: it is gone if its lock is free as well."""

    node: UUID
    beat: int


@dataclass(frozen=True, slots=True)
class Observer:
    """What one node has seen of the others."""

    seen: Mapping[UUID, Sighting]
    heard: frozenset[UUID] = frozenset()  # Those whose beat it has seen rise.


def observed(
    observer: Observer, beats: Collection[NodeBeat], asked_at_s: float, answered_at_s: float
) -> tuple[Observer, list[Expired]]:
    """Take in an answer. A late one is treated as none, except that it begins the counts."""
    if answered_at_s - asked_at_s > LATE_S:
        observer = unanswered(observer)
    seen: dict[UUID, Sighting] = {}
    expired: list[Expired] = []
    heard = {row.node for row in beats if row.node in observer.heard}
    for row in beats:
        before = observer.seen.get(row.node)
        if before is None or before.beat != row.beat:
            # The row may have been read at any moment up to the answer: the count begins at the latest of them.
            seen[row.node] = Sighting(row.beat, answered_at_s, before is not None)
            if before is not None:
                heard.add(row.node)
            continue
        seen[row.node] = before
        if asked_at_s - before.since_s >= row.lease_s:
            expired.append(Expired(row.node, row.beat))
    return Observer(seen, frozenset(heard)), expired


def unanswered(observer: Observer) -> Observer:
    """The database did not answer: nothing that was counted so far is proof. Who was heard before was alive."""
    return Observer({}, observer.heard)


def quiet(observer: Observer, beats: Iterable[NodeBeat], asked_at_s: float) -> list[Quiet]:
    """The nodes whose lock is worth a try, of those in the answer that was just taken in."""
    return [
        Quiet(row.node, row.beat)
        for row in beats
        if row.has_lock and not row.is_ended
        if (seen := observer.seen[row.node]).has_risen and asked_at_s - seen.since_s >= QUIET_S
    ]


def next_look_s(observer: Observer, now_s: float) -> float:
    """How long to wait before the next look: less than usual if a beat is about to be quiet."""
    left = (seen.since_s + QUIET_S - now_s for seen in observer.seen.values() if seen.has_risen)
    return min((OBSERVE_S, *(left_s for left_s in left if left_s > 0.0)))


def is_gone(row: NodeBeat | None, found: Quiet, is_free: bool) -> bool:
    """Whether an incarnation is to be ended now: the row as it is under its lock, and whether we have taken its own."""
    return row is not None and is_free and row.has_lock and not row.is_ended and row.beat == found.beat


def silent_s(observer: Observer, node: UUID, now_s: float) -> float:
    """For how long this node has been seen without a beat."""
    seen = observer.seen.get(node)
    return max(0.0, now_s - seen.since_s) if seen is not None else 0.0


def silent(observer: Observer, now_s: float) -> list[UUID]:
    """The nodes that have been silent for so long that they should get nothing new."""
    return [node for node in observer.seen if silent_s(observer, node, now_s) > SILENT_S]


def is_heard(observer: Observer, node: UUID, now_s: float) -> bool:
    """Whether this node is alive as far as anyone can see: its beat has risen before our eyes, and not long ago.

    The row of a node that was killed stands there until its lease ends, with a beat that never rises.
    """
    return node in observer.heard and silent_s(observer, node, now_s) <= SILENT_S


# Where can programs go?


@dataclass(frozen=True, slots=True)
class Reachable:
    """Where a node's row says that it is."""

    node: UUID
    address: str | None  # None until its port is known.
    is_draining: bool


def addresses(nodes: Iterable[Reachable], me: UUID, silent: Collection[UUID]) -> list[str]:
    """Where programs can go: not to a node that drains or seems dead. Each address once, that of this node last.

    A process that was killed and started again has two rows for a while, with one address.
    """
    found = [one for one in nodes if one.address and not one.is_draining and one.node not in silent]
    found.sort(key=lambda one: one.node == me)
    last_first = dict.fromkeys(one.address for one in reversed(found) if one.address)
    return list(reversed(last_first))
