"""Placement: which node a free stream is granted to.

A pure function of what the tick has read, so the same input gives the same answer on every node. A free stream goes to
the eligible node with the fewest streams; among equals in the order of joining, so that equal nodes take turns. A node
that is draining, or has not been heard of for a while, gets nothing new. A node that said it is unable to run a stream
gets that one again only after a while, and only if another node was able meanwhile: where nobody is able, the stream
waits for somebody to change something.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node, as the planner sees it."""

    node: UUID
    streams: int  # How many it has.
    is_eligible: bool = True  # Beats, and is not draining.


@dataclass(frozen=True, slots=True)
class Free:
    """A stream that should run and that nobody has."""

    stream: UUID
    unable: frozenset[UUID] = frozenset()  # Nodes that cannot run it, whenever they said so.
    unable_lately: frozenset[UUID] = frozenset()  # Those that said so in the last minutes.


def place(free: Iterable[Free], candidates: Sequence[Candidate]) -> dict[UUID, UUID]:
    """The node for each free stream, of those that have one. `candidates` are in the order of joining."""
    heap = [(one.streams, order, one.node) for order, one in enumerate(candidates) if one.is_eligible]
    heapq.heapify(heap)
    everyone = {one.node for one in candidates}
    placed: dict[UUID, UUID] = {}
    for one in free:
        if everyone <= one.unable:
            continue
        passed_over = []
        while heap:
            streams, order, node = heapq.heappop(heap)
            if node not in one.unable_lately:
                placed[one.stream] = node
                heapq.heappush(heap, (streams + 1, order, node))
                break
            passed_over.append((streams, order, node))
        for entry in passed_over:
            heapq.heappush(heap, entry)
    return placed
