"""The end of an incarnation before its lease is over: every order in which beats, sessions, looks and endings can meet.

One node runs a stream, another one watches it. Time is what an observer makes of it: a look comes when a beat would be
quiet, so whatever may happen within that time has happened or not. The ending transaction is two steps, and whatever
does not wait for its locks happens between them. What is decided comes from `core.lease` and `core.streams`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from headgate.core import lease, streams
from headgate.core.lease import NodeBeat, Observer, Quiet
from headgate.core.streams import Acquire, Done, Grant, Revoke, Stream, TakeOver

NODE, OTHER, RUN, NEXT_RUN = (UUID(int=n) for n in range(1, 5))
MOST_BEATS = 4
MOST_SESSIONS = 3
NOBODY = Observer({})


@dataclass(frozen=True)
class World:
    """A node, its row, the sessions of its beats, an observer, a stream and its sink."""

    row: NodeBeat | None
    stream: Stream
    observer: Observer = field(default=NOBODY, compare=False)
    now_s: float = field(default=0.0, compare=False)
    is_alive: bool = True
    trusts: bool = True  # As far as the node knows.
    session: int = 1  # The one that the node uses; 0: none.
    sessions: int = 1  # How many there have been.
    open: frozenset[int] = frozenset({1})  # Those that the server has not ended.
    holder: int = 1  # The session with the lock; 0: none; -1: the ending transaction.
    ending: Quiet | None = None  # A transaction that has locked the row, and whether it
    is_free: bool = False  # has got the lock.
    sink_epoch: int = 0  # The highest that has opened the sink.
    opened: bool = False  # By the next owner.

    def key(self) -> tuple[object, ...]:
        """Worlds with the same key have the same future: of the time it matters only what was seen in it."""
        seen = self.observer.seen.get(NODE)
        is_quiet = seen is not None and self.now_s - seen.since_s >= lease.QUIET_S
        return self, None if seen is None else (seen.beat, seen.has_risen, is_quiet)


def began(*, transactional: bool) -> World:
    claim = Acquire(NODE, RUN, 1, "source", "sink", claims=True, transactional=transactional)
    stream = streams.step(Stream(UUID(int=9)), claim).stream
    return World(NodeBeat(NODE, 1, lease.LEASE_S, has_lock=True), stream, sink_epoch=stream.epoch)


def following(world: World) -> Iterator[tuple[str, World]]:
    """Everything that can happen next."""
    row = world.row
    if world.is_alive:
        yield "dies", replace(world, is_alive=False, trusts=False, session=0)
        yield from _sessions(world)
    for one in world.open:
        holder = 0 if world.holder == one else world.holder
        yield "the server ends a session", replace(world, open=world.open - {one}, holder=holder)
    yield "looks", _looked(world)
    if row is not None and world.ending is None:
        for late in lease.quiet(world.observer, [row], world.now_s) if NODE in world.observer.seen else []:
            is_free = world.holder == 0
            yield "locks the row", replace(world, ending=late, is_free=is_free, holder=-1 if is_free else world.holder)
        yield "its lease ends", _expired(world)
    if world.ending is not None:
        yield "ends it, or not", _ended(world)
    if world.stream.owner is None:
        yield "is granted", replace(world, stream=streams.step(world.stream, Grant(OTHER)).stream)
    if world.stream.owner == OTHER and not world.opened:
        acquired = streams.step(world.stream, Acquire(OTHER, NEXT_RUN, 1, "source", "sink")).stream
        yield "opens the sink", replace(world, stream=acquired, sink_epoch=acquired.epoch, opened=True)


def _sessions(world: World) -> Iterator[tuple[str, World]]:
    """A session is opened when there is none. It takes the lock if it can, and beats when it gets to the row."""
    if world.session not in world.open:
        if world.session:
            yield "notices that its session is gone", replace(world, session=0)
        elif world.sessions < MOST_SESSIONS:
            number = world.sessions + 1
            yield "opens a session", replace(world, session=number, sessions=number, open=world.open | {number})
        return
    if world.holder == 0:
        yield "takes the lock", replace(world, holder=world.session)
    if world.ending is None and (world.row is None or world.row.beat < MOST_BEATS):
        yield "beats", _beaten(world)


def _beaten(world: World) -> World:
    if world.row is None or world.row.is_ended:
        return replace(world, trusts=False)
    beat = replace(world.row, beat=world.row.beat + 1, has_lock=world.holder == world.session)
    return replace(world, row=beat)


def _looked(world: World) -> World:
    """The next look that could tell something new."""
    now_s = world.now_s + lease.QUIET_S
    rows = [] if world.row is None else [world.row]
    return replace(world, observer=lease.observed(world.observer, rows, now_s, now_s)[0], now_s=now_s)


def _ended(world: World) -> World:
    """The second half of the ending transaction: what it decides, and its commit."""
    assert world.ending is not None
    released = replace(world, ending=None, holder=0 if world.holder == -1 else world.holder)
    if not lease.is_gone(world.row, world.ending, world.is_free):
        return released
    assert world.row is not None
    assert world.holder == -1, "ended while a session of it has the lock"
    done = streams.step(world.stream, TakeOver(NODE))
    return replace(released, row=replace(world.row, is_ended=True), stream=done.stream)


def _expired(world: World) -> World:
    """A lease has passed without a beat: the node has stopped trusting itself before."""
    return replace(world, row=None, trusts=False, stream=streams.step(world.stream, Revoke(NODE)).stream)


def check(world: World, *, transactional: bool) -> None:
    """What must hold whatever has happened."""
    stream = world.stream
    is_anothers = stream.owner != NODE
    if is_anothers and world.trusts:
        assert transactional, "another may have it, and nothing stops the first one from writing"
        assert stream.epoch > 1, "taken from a node that may write, without a new epoch"
    if world.opened and world.trusts:
        assert world.sink_epoch > 1, "the sink would take what the first one writes"
    if world.row is not None and world.row.is_ended and not transactional:
        assert stream.owner == NODE, "taken before its lease, and nobody fences it"


def walk(*, transactional: bool) -> tuple[int, set[str]]:
    """All worlds that can be reached: how many, and what has happened."""
    first = began(transactional=transactional)
    seen, frontier, happened = {first.key()}, [first], set[str]()
    while frontier:
        world = frontier.pop()
        for what, after in following(world):
            happened.add(what)
            check(after, transactional=transactional)
            if after.key() not in seen:
                seen.add(after.key())
                frontier.append(after)
    return len(seen), happened


@pytest.mark.parametrize("transactional", [True, False])
def test_every_order_of_beats_sessions_looks_and_endings_keeps_the_rules(transactional: bool) -> None:
    worlds, happened = walk(transactional=transactional)
    assert worlds > 1000
    assert {"takes the lock", "ends it, or not", "its lease ends", "is granted", "opens the sink"} <= happened


def _always_gone(row: NodeBeat | None, found: Quiet, is_free: bool) -> bool:
    return row is not None and not row.is_ended


def _as_if_fenced(stream: Stream, owner: UUID) -> streams.Step:
    return streams.Step(streams.step(stream, Revoke(owner)).stream, Done())


def _same_epoch(stream: Stream, owner: UUID) -> streams.Step:
    freed = streams.step(stream, Revoke(owner)).stream
    return streams.Step(_with_epoch(freed, stream.epoch), Done())


def _with_epoch(stream: Stream, epoch: int) -> Stream:
    return Stream(stream.id, stream.owner, stream.run, epoch, stream.progress, transactional=stream.transactional)


@pytest.mark.parametrize(
    ("where", "function", "planted", "transactional"),
    [
        (lease, "is_gone", _always_gone, True),
        (streams, "_take_over", _as_if_fenced, False),
        (streams, "_take_over", _same_epoch, True),
    ],
    ids=["the lock is not looked at", "what no sink fences is taken", "the epoch stays"],
)
def test_the_walk_finds_what_is_planted(
    monkeypatch: pytest.MonkeyPatch, where: object, function: str, planted: object, transactional: bool
) -> None:
    monkeypatch.setattr(where, function, planted)
    with pytest.raises(AssertionError):
        walk(transactional=transactional)
