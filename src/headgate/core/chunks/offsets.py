"""OffsetManager: which chunks a table has, and where the next one begins. It knows nothing of workers.

It goes over a table from the beginning, from a point, or over a list of chunks. `next_chunk` returns a chunk of the
list, or `Cut`: ask the source where a chunk of that many rows ends, then report the answer with `planned`.

How many rows a chunk has follows how long chunks took. About three seconds is long enough that nothing is lost at the
edges, and short enough that little is repeated after a crash. The last ones are smaller, so that workers end together.
Chunks that no worker has taken yet are cut again when they turn out far too large: `recut`.

A table is complete when its planning has ended and each of its chunks is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headgate.core.chunks import Bound, Range
from headgate.core.chunks.locks import Chunk, State
from headgate.errors import Refused

FIRST_ROWS = 50_000  # The first chunk's size: a fraction of a second between fast storages, a few between slow ones.
LEAST_ROWS = 100
MOST_ROWS = 5_000_000
SHORT_S = 1.0  # A chunk should take this long at least
AIM_S = 3.0
LONG_S = 5.0  # and this long at most.
RECUT = 3.0  # Waiting chunks are cut again if they are too large by this factor. Small ones are soon done.
GROWTH = 8.0  # A size changes by no more than this factor at once: one chunk may be an exception.
AHEAD = 2  # Chunks that wait for each worker.


@dataclass(frozen=True, slots=True)
class Offsets:
    """How far one table is planned."""

    top: Bound | None  # None: there is nothing to copy.
    at: Bound | None = None  # Where the next chunk begins.
    again: tuple[Range, ...] = ()  # Chunks to hand out before anything new is cut.
    ended: bool = False  # Nothing new is to be cut.
    rows: int = FIRST_ROWS
    fixed: bool = False  # An operator chose the size.


@dataclass(frozen=True, slots=True)
class Cut:
    """Ask the source where a chunk of this many rows after `after` ends."""

    after: Bound | None
    rows: int


def from_start(top: Bound | None, rows: int | None = None) -> Offsets:
    """A whole table. Without a size it begins small and follows how long chunks take."""
    return Offsets(top, ended=top is None, rows=rows or FIRST_ROWS, fixed=rows is not None)


def from_point(offsets: Offsets, at: Bound) -> Offsets:
    """Only what comes after a point."""
    return replace(offsets, at=at, ended=offsets.ended or at == offsets.top)


def from_list(ranges: Iterable[Range]) -> Offsets:
    """Only these chunks."""
    return Offsets(None, again=tuple(ranges), ended=True)


def from_plan(offsets: Offsets, planned: Sequence[Chunk]) -> Offsets:
    """Go on with a plan. Its last chunk says best how far it went: the row that should say so may be older."""
    at = planned[-1].range.hi
    return replace(offsets, at=at, ended=(offsets.ended and at == offsets.at) or at == offsets.top)


def next_chunk(offsets: Offsets, left: int | None = None, workers: int = 1) -> tuple[Offsets, Range | Cut | None]:
    """The next chunk, or where to cut it. None: there is no more. `left` is about how many rows are still to be cut."""
    if offsets.again:
        return replace(offsets, again=offsets.again[1:]), offsets.again[0]
    return offsets, None if offsets.ended else Cut(offsets.at, _even(offsets, left, workers))


def is_wanted(offsets: Offsets, waiting: int, workers: int) -> bool:
    """Whether another chunk should be handed out, when this many wait for these workers."""
    return waiting < AHEAD * workers and not is_handed_out(offsets)


def is_handed_out(offsets: Offsets) -> bool:
    """Whether there is no other chunk."""
    return offsets.ended and not offsets.again


def _even(offsets: Offsets, left: int | None, workers: int) -> int:
    """Chunks become smaller towards the end, so that all workers have something to do until then. If the end is
    farther away than was thought, they are as large as before."""
    if offsets.fixed or workers == 1 or left is None or left <= 0:
        return offsets.rows
    return min(offsets.rows, max(FIRST_ROWS, left // (2 * workers)))


def planned(offsets: Offsets, hi: Bound) -> tuple[Offsets, Range]:
    """The source said where the chunk ends."""
    if offsets.ended or hi == offsets.at:
        raise Refused(f"a chunk cannot end at {hi!r}", code="no_progress")
    return replace(offsets, at=hi, ended=hi == offsets.top), Range(offsets.at, hi)


def observed(offsets: Offsets, rows: int, seconds: float) -> Offsets:
    """A chunk took this long: let the next ones take between one second and five."""
    if offsets.fixed or rows <= 0 or SHORT_S <= seconds <= LONG_S:
        return offsets
    factor = min(GROWTH, max(1 / GROWTH, AIM_S / max(seconds, 0.001)))
    if factor > 1 and rows < offsets.rows / 2:
        return offsets  # It was short because it was small: cut before the size grew, or the last one.
    near = min(offsets.rows * GROWTH, max(offsets.rows / GROWTH, rows * factor))
    return replace(offsets, rows=min(MOST_ROWS, max(LEAST_ROWS, round(near))))


def end(offsets: Offsets) -> Offsets:
    """A source without a known size has nothing more."""
    return replace(offsets, ended=True)


def is_recut(offsets: Offsets, cut_rows: int) -> bool:
    """Whether chunks of this size, which no worker has taken yet, are far too large."""
    return cut_rows > RECUT * offsets.rows


def recut(offsets: Offsets, chunks: Sequence[Chunk]) -> tuple[Offsets, list[Chunk]]:
    """Take back the chunks at the end of the plan that no worker ever had, to cut them again. Returns those."""
    tail: list[Chunk] = []
    for chunk in reversed(chunks):
        if chunk.state is not State.PLANNED or chunk.epoch > 0 or chunk.range.hi != offsets.at:
            break
        tail.append(chunk)
        offsets = replace(offsets, at=chunk.range.lo, ended=False)
    return offsets, tail


# Completion.


def is_complete(offsets: Offsets, chunks: Iterable[Chunk]) -> bool:
    """Whether every chunk of the table is written and none is to come."""
    return is_handed_out(offsets) and all(chunk.state is State.DONE for chunk in chunks)


def is_stuck(offsets: Offsets, chunks: Iterable[Chunk]) -> bool:
    """Whether nothing more can be done, though not all is done: some chunks failed too often."""
    states = {chunk.state for chunk in chunks}
    return is_handed_out(offsets) and State.FAILED in states and states <= {State.DONE, State.FAILED}


def unplanned(chunks: Iterable[Chunk], ledger: Iterable[Range]) -> list[Range]:
    """Chunks that the target's ledger has and the whole plan lacks. The plan is then older than the target, as after a
    restore from a backup, and cannot go on: new cuts would fall inside what is written."""
    known = {chunk.range for chunk in chunks}
    return [range for range in ledger if range not in known]


def is_covered(top: Bound | None, chunks: Sequence[Chunk], after: Bound | None = None) -> bool:
    """Whether the chunks, in their order, go from the beginning, or a point, to the top without gap or overlap."""
    at = after
    for chunk in chunks:
        if chunk.range.lo != at:
            return False
        at = chunk.range.hi
    return at == top
