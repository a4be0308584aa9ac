"""What becomes of a table and of a whole dump: when a table is given up, how a dump ends, and what may be asked of it.

A dump's status is one word:

    running      a process copies            completed    everything is copied
    paused       waits for an operator       incomplete   some tables are copied, others failed
    waiting      for a node to take it       failed       a storage is gone
    cancelling   ends as soon as it can      interrupted  the process that ran it has ended, or died
                                             cancelled    given up by an operator

Workers report four things. `completed`: the chunk is written. `end`: the query returned nothing, which is where a
source without a known size ends. `error`: this chunk failed; it is tried again, and others go on. `failure`: a storage
is gone; the whole dump stops, and can be resumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headgate.core.chunks.locks import Chunk, State
from headgate.core.chunks.offsets import Offsets, is_complete, is_stuck
from headgate.errors import NotFound, Refused

INTERRUPTED = "interrupted"  # The error of a dump whose process was asked to end.


class Notice(StrEnum):
    """What a worker reports of a chunk."""

    COMPLETED = "completed"
    END = "end"
    ERROR = "error"
    FAILURE = "failure"


class TableState(StrEnum):
    """Where a table is."""

    WAITING = "waiting"
    COPYING = "copying"
    FINISHING = "finishing"  # Its rows are there; keys, indexes and constraints follow.
    DONE = "done"
    FAILED = "failed"


class Status(StrEnum):
    """Where a dump is. Those that need an operator come first."""

    FAILED = "failed"
    INCOMPLETE = "incomplete"
    INTERRUPTED = "interrupted"
    CANCELLING = "cancelling"
    PAUSED = "paused"
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class DumpWanted(StrEnum):
    """What an operator wants of a dump."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


# Of a chunk.


def notice(rows: int, *, is_sized: bool) -> Notice:
    """What a worker reports of a chunk that it wrote."""
    return Notice.END if rows == 0 and not is_sized else Notice.COMPLETED


def is_silent(asked_s: float | None, now_s: float, timeout_s: float) -> bool:
    """Whether a source that was asked for data (None: it was not) is to be counted as gone."""
    return asked_s is not None and now_s - asked_s > timeout_s


# Of a table.


@dataclass(frozen=True, slots=True)
class Complete:
    """Every row is written: the table can be finished."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Nothing more can be done for this table in this run."""

    error: str


def verdict(
    whole: Offsets, chunks: Sequence[Chunk], listed: Offsets | None = None, numbers: Collection[int] = ()
) -> Complete | GivenUp | None:
    """What becomes of a table. None: it goes on. A run over a list ends with the chunks of these numbers."""
    if is_complete(whole, chunks):
        return Complete()
    if listed is None:
        is_over = is_stuck(whole, chunks)
    else:
        asked = [chunk for chunk in chunks if chunk.number in numbers]
        is_over = is_complete(listed, asked) or is_stuck(listed, asked)
    if not is_over:
        return None
    failed = [chunk for chunk in chunks if chunk.state is State.FAILED]
    if failed:
        return GivenUp(f"{len(failed)} of {_count(len(chunks))} failed: {failed[0].error}")
    left = sum(chunk.state is not State.DONE for chunk in chunks)
    return GivenUp(f"only the chunks of a list were copied, {left} of {_count(len(chunks))} are left")


def _count(chunks: int) -> str:
    return "1 chunk" if chunks == 1 else f"{chunks} chunks"


def check_list(chunks: Iterable[Chunk], numbers: Iterable[int]) -> None:
    """Refuse a list of chunks of which some cannot be tried again."""
    states = {chunk.number: chunk.state for chunk in chunks}
    for number in numbers:
        if number not in states:
            raise NotFound(f"chunk {number} is not in the plan", hint="headgate dumps history shows the chunks")
        if states[number] is State.DONE:
            raise Refused(
                f"chunk {number} is done", code="done", hint="headgate dumps verify --repair copies what differs"
            )


# Of a dump.


def unnamed(error: str, *names: str) -> str:
    """An error of a table without its names (at the source, at the target), which are shown before it."""
    for name in dict.fromkeys(names):
        error = error.removeprefix(f"{name}: ")
    return error


def ended(tables: Sequence[tuple[str, TableState, str]]) -> tuple[Status, str]:
    """How a dump ends whose tables (name, state, error) can go no further."""
    for name, state, error in tables:
        if state is not TableState.DONE:
            return Status.INCOMPLETE, f"{name}: {error or 'not copied yet'}"
    return Status.COMPLETED, ""


def status(kept: Status, error: str, wanted: DumpWanted, *, is_run: bool, is_for_nodes: bool) -> Status:
    """The word for a dump, from what is kept of it and whether a process that lives runs it."""
    if kept is Status.FAILED and error == INTERRUPTED:
        return Status.INTERRUPTED
    if kept is not Status.RUNNING:
        return kept
    if not is_run and not is_for_nodes:
        return Status.INTERRUPTED
    match wanted:
        case DumpWanted.PAUSE:
            return Status.PAUSED
        case DumpWanted.CANCEL:
            return Status.CANCELLING
        case DumpWanted.RUN:
            return Status.RUNNING if is_run else Status.WAITING


OVER = frozenset({Status.COMPLETED, Status.CANCELLED})
RESUMABLE = frozenset({Status.PAUSED, Status.INTERRUPTED, Status.FAILED, Status.INCOMPLETE})
ALLOWED: dict[str, frozenset[Status]] = {
    "paused": frozenset({Status.RUNNING, Status.WAITING, Status.PAUSED}),
    "resumed": RESUMABLE,
    "retried": RESUMABLE - {Status.PAUSED},
    "given a rate": frozenset(Status) - OVER - {Status.CANCELLING},
    "cancelled": frozenset(Status) - {Status.COMPLETED},
    "cleaned": OVER,
    "deleted": OVER,
}
"""In which status what may be asked."""


def takes_part(kept: Status, wanted: DumpWanted, *, is_run: bool) -> bool:
    """Whether workers elsewhere have something to do: a process plans, and the dump is to go on."""
    return kept is Status.RUNNING and wanted is not DumpWanted.CANCEL and is_run


def is_for_me(*, is_run: bool, is_spread: bool) -> bool:
    """Whether a node should take a dump that is open: to run it, or to work on it with others."""
    return not is_run or is_spread
