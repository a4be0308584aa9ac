"""Placement: which node runs which stream, and who should.

A worker stream is a group (`core.groups`) whose consumers are the nodes, in the order of joining, and whose active one
is the stream's owner. The planner only wishes; the rule of the group acts. So a wish takes nothing from anybody: a
stream moves when its holder has stepped down, and a stream about which nobody wishes anything stays where it is.

All three functions are pure and give the same answer for the same input on every node.

- `place` says who is granted a free stream: the preferred node, else (`sticky`) the one with the least load, in the
  order of joining among equals; or (`modulo`) the one that the stream's number falls on.
- `plan` says what to wish: the fewest moves that spread the load evenly, a limited number at a time.
- `orders` says whose holder should be told to step down now.

A node that is draining, or has not been heard of for a while, gets nothing new. One that said it is unable to run a
stream gets that one again only after a while, and only if another node was able meanwhile: where nobody is able, the
stream waits for somebody to change something.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from headgate.core.groups import machine as groups
from headgate.core.groups.machine import Consumer, Group, TellActive, TellStepDown

GAIN = 0.2  # A move must narrow the gap between two nodes by this much of what moves: figures waver.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node, as the planner sees it."""

    node: UUID
    load: float  # What it has to carry, apart from the streams that a question is about.
    is_eligible: bool = True  # Beats, and is not draining.
    is_heard: bool = True  # Has not been silent for long.


@dataclass(frozen=True, slots=True)
class Free:
    """A stream that should run and that nobody has."""

    stream: UUID
    unable: frozenset[UUID] = frozenset()  # Nodes that cannot run it, whenever they said so.
    unable_lately: frozenset[UUID] = frozenset()  # Those that said so in the last minutes.
    preferred: UUID | None = None
    number: int | None = None  # Of a stream that is placed by its number (`modulo`).


@dataclass(frozen=True, slots=True)
class Placed:
    """A stream that a node has."""

    stream: UUID
    owner: UUID
    weight: float = 1.0
    preferred: UUID | None = None  # The wish so far.
    is_pinned: bool = False  # An operator's wish, which outranks the planner's until its node leaves.
    is_stepping: bool = False  # The owner has been told to step down.
    unable: frozenset[UUID] = frozenset()
    number: int | None = None


# Acting: the rule of the group.


def place(free: Iterable[Free], candidates: Sequence[Candidate]) -> dict[UUID, UUID]:
    """The node for each free stream, of those that have one. `candidates` are in the order of joining."""
    ids = {str(one.node): one.node for one in candidates}
    order = {one.node: number for number, one in enumerate(candidates)}
    loads = {one.node: one.load for one in candidates if one.is_eligible}
    heap = [(load, order[node], node) for node, load in loads.items()]
    heapq.heapify(heap)
    everyone = frozenset(ids.values())
    placed: dict[UUID, UUID] = {}
    for one in free:
        if everyone <= one.unable:
            continue
        fallback = _least_loaded(heap, loads, one.unable_lately)
        group = _group(candidates, one.unable_lately, one.number, preferred=one.preferred, fallback=fallback)
        for effect in groups.settle(group)[1]:
            if isinstance(effect, TellActive):
                node = placed[one.stream] = ids[effect.consumer]
                loads[node] += 1.0
                heapq.heappush(heap, (loads[node], order[node], node))
    return placed


def orders(placed: Iterable[Placed], candidates: Sequence[Candidate]) -> list[UUID]:
    """The streams whose holder should be told to step down now."""
    return [
        one.stream
        for one in placed
        if any(isinstance(effect, TellStepDown) for effect in groups.settle(_group_of(one, candidates))[1])
    ]


def _group_of(one: Placed, candidates: Sequence[Candidate]) -> Group:
    activity: groups.Activity = "deactivating" if one.is_stepping else "active"
    return _group(candidates, one.unable, one.number, (one.owner, activity), preferred=one.preferred)


def _group(
    candidates: Sequence[Candidate],
    unable: frozenset[UUID],
    number: int | None,
    holder: tuple[UUID | None, groups.Activity] = (None, "waiting"),
    *,
    preferred: UUID | None = None,
    fallback: UUID | None = None,
) -> Group:
    owner, activity = holder
    consumers = tuple(
        Consumer(
            id := str(one.node),
            id,
            connectivity="connected" if one.is_heard else "disconnected",
            activity=activity if one.node == owner else "waiting",
            is_able=one.is_eligible and one.node not in unable,
        )
        for one in candidates
    )
    return Group(
        partition=number,
        consumers=consumers,
        preferred=_text(preferred),
        fallback=_text(fallback),
        is_sticky=number is None,
    )


def _text(node: UUID | None) -> str | None:
    return None if node is None else str(node)


def _least_loaded(
    heap: list[tuple[float, int, UUID]], loads: dict[UUID, float], unable: frozenset[UUID]
) -> UUID | None:
    """The first of the heap that is able; entries that a grant has overtaken are dropped on the way."""
    passed_over, found = [], None
    while heap:
        load, _, node = heap[0]
        if load != loads[node]:
            heapq.heappop(heap)
        elif node in unable:
            passed_over.append(heapq.heappop(heap))
        else:
            found = node
            break
    for entry in passed_over:
        heapq.heappush(heap, entry)
    return found


# Wishing.


def plan(placed: Sequence[Placed], candidates: Sequence[Candidate], most: int) -> dict[UUID, UUID | None]:
    """The wishes that change, with at most `most` moves under way: a node for a stream; None: no wish any more."""
    eligible = {one.node for one in candidates if one.is_eligible}
    wishes: dict[UUID, UUID | None] = {}
    loads = {one.node: one.load for one in candidates if one.is_eligible}
    movable: dict[UUID, list[tuple[float, UUID, Placed]]] = {node: [] for node in loads}
    under_way = 0
    for one in sorted(placed, key=lambda one: one.stream):
        wish = _kept_wish(one, candidates, eligible)
        if one.preferred is not None and wish is None:
            wishes[one.stream] = None
        target = wish if wish in eligible - one.unable else one.owner
        moves = target != one.owner
        if moves and one.preferred != target:
            if under_way >= most:
                continue
            wishes[one.stream] = target
        under_way += moves
        if target in loads:
            loads[target] += one.weight
            if wish is None and one.number is None:
                movable[target].append((one.weight, one.stream, one))
    return wishes | _evened_out(loads, movable, most - under_way)


def _kept_wish(one: Placed, candidates: Sequence[Candidate], eligible: set[UUID]) -> UUID | None:
    """Where the stream should be, as far as that is settled: by an operator, by its number, or by a move under way."""
    if one.is_pinned:
        return one.preferred
    if one.number is not None:
        target = groups.wanted(_group_of(one, candidates))
        return None if target is None or target.id == str(one.owner) else UUID(target.id)
    return one.preferred if one.preferred in eligible - one.unable - {one.owner} else None


def _evened_out(
    loads: dict[UUID, float], movable: dict[UUID, list[tuple[float, UUID, Placed]]], most: int
) -> dict[UUID, UUID | None]:
    """Moves from the fullest node to the emptiest, until none is worth its while."""
    wishes: dict[UUID, UUID | None] = {}
    givers = set(loads)
    for streams in movable.values():
        streams.sort(key=lambda entry: entry[:2])
    while givers and len(wishes) < most:
        giver = max(givers, key=lambda node: (loads[node], node))
        found = None
        for taker in sorted(loads, key=lambda node: (loads[node], node)):
            found = _best(movable[giver], loads[giver] - loads[taker], taker)
            if found is not None:
                weight, stream, _ = movable[giver].pop(found)
                loads[giver] -= weight
                loads[taker] += weight
                wishes[stream] = taker
                break
        if found is None:
            givers.discard(giver)
    return wishes


def _best(streams: list[tuple[float, UUID, Placed]], gap: float, taker: UUID) -> int | None:
    """The stream whose move would narrow the gap the most; None: none would enough."""

    def gain(index: int) -> float:
        weight, _, one = streams[index]
        return -1.0 if taker in one.unable else 2.0 * min(weight, gap - weight) - GAIN * weight

    if gap <= 0.0 or not streams:
        return None
    middle = bisect_left(streams, gap / 2.0, key=lambda entry: entry[0])
    for some in (range(max(0, middle - 4), min(len(streams), middle + 4)), range(len(streams))):
        best = max(some, key=lambda index: (gain(index), -index))
        if gain(best) > 0.0:
            return best
    return None
