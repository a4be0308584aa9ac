"""Chunks of a dump: where they begin and end, who has them, and when all is done.

A table is copied in chunks. A chunk is the rows after `lo` up to and including `hi`; the first has no `lo`, and the
last ends at the *top*, the greatest key when the dump began. Greater keys belong to nobody, so a table that grows for
ever is copied all the same. Each chunk begins where the one before it ended: there is no gap and no overlap, whatever
the keys are. Nothing here compares two bounds. They are the source's text, and only the source knows their order.

**OffsetManager** knows where the next chunk begins, and nothing of workers. It goes over a table from the beginning,
from a point, or over a list of chunks that failed before. Whoever asks gets a chunk of the list, or `Cut`: ask the
source where a chunk of so many rows would end, then say so with `planned`. How many rows that should be follows what
chunks took: about three seconds is long enough that nothing is lost at the edges and short enough that little is
repeated after a crash. The last ones are smaller, so that workers end together. Chunks that nobody has taken yet are
cut anew when they have proved too large: `recut`.

**LockManager** is the chunk's life. A chunk is leased by one worker until a deadline, under an epoch that rises with
every lease; what comes under an older one changes nothing. A lease that is not renewed runs out, and the chunk returns.
That is a failure like others: a chunk that needs more memory than there is would else kill one worker after another.
The lease saves work. It is not what makes a chunk be written once: that is the target's ledger.

        plan            lease              done
    ──────▶ PLANNED ──────────▶ LEASED ──────────▶ DONE
               ▲                  │  │
               └──────────────────┘  └──────────▶ FAILED ──▶ PLANNED when the dump is resumed
          given back · failed · run out    failed, or run out, too often

A dump's table is complete when its planning has ended and each of its chunks is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from headgate.errors import Refused

Bound: TypeAlias = tuple[str, ...]

FIRST_ROWS = 50_000  # The first chunk's size: a fraction of a second between fast storages, a few between slow ones.
LEAST_ROWS = 100
MOST_ROWS = 5_000_000
SHORT_S = 1.0  # A chunk should take this long at least
AIM_S = 3.0
LONG_S = 5.0  # and this long at most.
RECUT = 3.0  # Chunks in waiting are cut anew if they have proved too large by this factor. Small ones are soon done.
GROWTH = 8.0  # A size changes by no more than this factor at once: one chunk may be an exception.
ATTEMPTS = 3  # After so many a chunk is left, and the others go on.
LEASE_S = 15.0  # A worker renews it every few seconds.
LOST = "the worker that had it was not heard of again: killed, cut off, or out of memory"


@dataclass(frozen=True, slots=True)
class Range:
    """The rows after `lo` up to and including `hi`. Without `lo`: from the beginning."""

    lo: Bound | None
    hi: Bound


# OffsetManager: where chunks begin and end.


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
    """Ask the source where a chunk after `after`, of about so many rows, ends."""

    after: Bound | None
    rows: int


def from_start(top: Bound | None, rows: int | None = None) -> Offsets:
    """A whole table. Without a size it begins small and follows what chunks take."""
    return Offsets(top, ended=top is None, rows=rows or FIRST_ROWS, fixed=rows is not None)


def from_point(offsets: Offsets, at: Bound) -> Offsets:
    """Only what comes after a point."""
    return replace(offsets, at=at, ended=offsets.ended or at == offsets.top)


def from_list(ranges: Iterable[Range]) -> Offsets:
    """Only these chunks: those that failed before."""
    return Offsets(None, again=tuple(ranges), ended=True)


def next_chunk(offsets: Offsets, left: int | None = None, workers: int = 1) -> tuple[Offsets, Range | Cut | None]:
    """The next chunk, or where to cut it. None: there is no more. `left` is about how many rows are still to be cut."""
    if offsets.again:
        return replace(offsets, again=offsets.again[1:]), offsets.again[0]
    return offsets, None if offsets.ended else Cut(offsets.at, _even(offsets, left, workers))


def _even(offsets: Offsets, left: int | None, workers: int) -> int:
    """Chunks become smaller towards the end, so that all workers have something to do until then. If the end was
    thought to be nearer than it is, they are as large as before."""
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
        return offsets  # It was short because it was small: a chunk of before, or the last one.
    near = min(offsets.rows * GROWTH, max(offsets.rows / GROWTH, rows * factor))
    return replace(offsets, rows=min(MOST_ROWS, max(LEAST_ROWS, round(near))))


def end(offsets: Offsets) -> Offsets:
    """A source without a known size has nothing more."""
    return replace(offsets, ended=True)


def is_recut(offsets: Offsets, cut_rows: int) -> bool:
    """Whether chunks of this size, which nobody has taken yet, are far too large."""
    return cut_rows > RECUT * offsets.rows


def recut(offsets: Offsets, chunks: Sequence[Chunk]) -> tuple[Offsets, list[Chunk]]:
    """Take back the chunks at the end of the plan that nobody ever had, to cut them anew. Returns those."""
    tail: list[Chunk] = []
    for chunk in reversed(chunks):
        if chunk.state is not State.PLANNED or chunk.epoch > 0 or chunk.range.hi != offsets.at:
            break
        tail.append(chunk)
        offsets = replace(offsets, at=chunk.range.lo, ended=False)
    return offsets, tail


# LockManager: who has a chunk.


class State(StrEnum):
    """Where a chunk is in its life."""

    PLANNED = "planned"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk: its rows, and its life so far."""

    number: int
    range: Range
    state: State = State.PLANNED
    epoch: int = 0  # Rises with every lease.
    worker: str | None = None
    until_s: float = 0.0  # When the lease runs out.
    attempts: int = 0  # That failed, one after another.
    rows: int = 0
    error: str = ""


def lease(chunk: Chunk, worker: str, now_s: float, lease_s: float = LEASE_S) -> Chunk:
    """Give the chunk to a worker."""
    if chunk.state is not State.PLANNED:
        raise Refused(f"chunk {chunk.number} is {chunk.state}", code=chunk.state)
    return replace(chunk, state=State.LEASED, worker=worker, epoch=chunk.epoch + 1, until_s=now_s + lease_s)


def renew(chunk: Chunk, epoch: int, now_s: float, lease_s: float = LEASE_S) -> Chunk | None:
    """The worker goes on. None: the chunk is another's by now."""
    return replace(chunk, until_s=now_s + lease_s) if _holds(chunk, epoch) else None


def finish(chunk: Chunk, epoch: int, rows: int) -> Chunk | None:
    """The chunk is written. None: that is not this lease's to say."""
    return _ended(chunk, State.DONE, rows=rows, error="", attempts=0) if _holds(chunk, epoch) else None


def settle(chunk: Chunk, rows: int) -> Chunk:
    """The target's ledger has the chunk: whoever wrote it, it is done."""
    return _ended(chunk, State.DONE, rows=rows, error="", attempts=0)


def unsettle(chunk: Chunk) -> Chunk:
    """The target's ledger does not have a chunk that was written: the target has lost it, and gets it again."""
    return replace(chunk, state=State.PLANNED, rows=0) if chunk.state is State.DONE else chunk


def fail(chunk: Chunk, epoch: int, error: str, most: int = ATTEMPTS) -> Chunk | None:
    """The worker could not. After some attempts the chunk is left for an operator."""
    return _failed(chunk, error, most) if _holds(chunk, epoch) else None


def give_back(chunk: Chunk, epoch: int) -> Chunk | None:
    """The worker stops without having failed."""
    return _ended(chunk, State.PLANNED) if _holds(chunk, epoch) else None


def run_out(chunk: Chunk, now_s: float, most: int = ATTEMPTS) -> Chunk | None:
    """A lease that was not renewed ends. None: there is none to end."""
    is_over = chunk.state is State.LEASED and chunk.until_s <= now_s
    return _failed(chunk, LOST, most) if is_over else None


def retry(chunk: Chunk) -> Chunk:
    """An operator resumes the dump: what failed is tried again."""
    return replace(chunk, state=State.PLANNED, attempts=0) if chunk.state is State.FAILED else chunk


def _holds(chunk: Chunk, epoch: int) -> bool:
    return chunk.state is State.LEASED and chunk.epoch == epoch


def _failed(chunk: Chunk, error: str, most: int) -> Chunk:
    attempts = chunk.attempts + 1
    return _ended(chunk, State.FAILED if attempts >= most else State.PLANNED, error=error, attempts=attempts)


def _ended(chunk: Chunk, state: State, **changes: int | str) -> Chunk:
    return replace(chunk, state=state, worker=None, until_s=0.0, **changes)  # type: ignore[arg-type]


# Completion.


def is_complete(offsets: Offsets, chunks: Iterable[Chunk]) -> bool:
    """Whether every chunk of the table is written and none is to come."""
    return offsets.ended and not offsets.again and all(chunk.state is State.DONE for chunk in chunks)


def is_stuck(offsets: Offsets, chunks: Iterable[Chunk]) -> bool:
    """Whether nothing more can be done here, though not all is done: some chunks failed too often."""
    states = {chunk.state for chunk in chunks}
    return offsets.ended and not offsets.again and State.FAILED in states and states <= {State.DONE, State.FAILED}


def unplanned(chunks: Iterable[Chunk], ledger: Iterable[Range]) -> list[Range]:
    """Chunks that the target's ledger has and the whole plan has not. The plan is then older than the target, as after
    a restore from a backup: it may not be gone on with, for new cuts would fall inside what is written."""
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
