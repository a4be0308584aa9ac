"""LockManager: the life of one chunk.

A chunk is leased by one worker until a deadline, under an epoch that rises with every lease; what a worker says under
an older epoch changes nothing. A lease that is not renewed runs out, and the chunk returns. That counts as a failure:
a chunk that needs more memory than there is would otherwise kill one worker after another. The lease saves work. It is
not what makes a chunk be written once: that is the target's ledger.

        plan            lease              done
    ──────▶ PLANNED ──────────▶ LEASED ──────────▶ DONE
               ▲                  │  │
               └──────────────────┘  └──────────▶ FAILED ──▶ PLANNED when an operator resumes or retries
          given back · failed · run out    failed, or run out, too often

A chunk that failed waits before it is leased again, longer each time: what broke it (a lock, a server that restarts)
needs a moment to pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from headgate.core import backoff
from headgate.core.chunks import Range
from headgate.errors import Refused

ATTEMPTS = 3  # After this many failures in a row a chunk is given up, and the others go on.
LEASE_S = 15.0  # A worker renews it every few seconds.
GOLDEN = 0.618  # Multiples of it, without their whole part, lie far apart: chunks that failed together spread out.
LOST = "the worker that had it was not heard of again: killed, cut off, or out of memory"


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
    until_s: float = 0.0  # Leased: when the lease runs out. Planned: not leased before this.
    attempts: int = 0  # Failures in a row.
    rows: int = 0
    error: str = ""


def lease(chunk: Chunk, worker: str, now_s: float, lease_s: float = LEASE_S) -> Chunk:
    """Give the chunk to a worker."""
    if chunk.state is not State.PLANNED:
        raise Refused(f"chunk {chunk.number} is {chunk.state}", code=chunk.state)
    if now_s < chunk.until_s:
        raise Refused(f"chunk {chunk.number} waits for {chunk.until_s - now_s:.1f} s", code="waiting")
    return replace(chunk, state=State.LEASED, worker=worker, epoch=chunk.epoch + 1, until_s=now_s + lease_s)


def renew(chunk: Chunk, epoch: int, now_s: float, lease_s: float = LEASE_S) -> Chunk | None:
    """The worker goes on. None: another worker has the chunk now."""
    return replace(chunk, until_s=now_s + lease_s) if _holds(chunk, epoch) else None


def finish(chunk: Chunk, epoch: int, rows: int) -> Chunk | None:
    """The chunk is written. None: this lease has ended."""
    return _ended(chunk, State.DONE, rows=rows, error="", attempts=0) if _holds(chunk, epoch) else None


def settle(chunk: Chunk, rows: int) -> Chunk:
    """The target's ledger has the chunk: it is done, whichever worker wrote it."""
    return _ended(chunk, State.DONE, rows=rows, error="", attempts=0)


def unsettle(chunk: Chunk) -> Chunk:
    """The target's ledger lacks a chunk that was written: the target has lost it, and gets it again."""
    return replace(chunk, state=State.PLANNED, rows=0) if chunk.state is State.DONE else chunk


def reconcile(chunk: Chunk, rows: int | None, *, decides: bool) -> Chunk:
    """The chunk by the target's ledger, which has it with this many rows, or (None) lacks it. A ledger that does not
    `decide` knows only some of what was written."""
    if rows is not None:
        return settle(chunk, rows)
    return unsettle(chunk) if decides else chunk


def fail(chunk: Chunk, epoch: int, error: str, now_s: float, most: int = ATTEMPTS) -> Chunk | None:
    """The worker could not write the chunk. It is tried again after a wait, or given up. None: this lease has
    ended."""
    return _failed(chunk, error, now_s + wait_s(chunk), most) if _holds(chunk, epoch) else None


def give_back(chunk: Chunk, epoch: int) -> Chunk | None:
    """The worker stops without having failed."""
    return _ended(chunk, State.PLANNED) if _holds(chunk, epoch) else None


def run_out(chunk: Chunk, now_s: float, most: int = ATTEMPTS) -> Chunk | None:
    """A lease that was not renewed ends. None: there is none to end. The deadline was wait enough."""
    is_over = chunk.state is State.LEASED and chunk.until_s <= now_s
    return _failed(chunk, LOST, 0.0, most) if is_over else None


def retry(chunk: Chunk) -> Chunk:
    """An operator resumes the dump: what failed is tried again."""
    return replace(chunk, state=State.PLANNED, attempts=0) if chunk.state is State.FAILED else chunk


def free(chunk: Chunk, dead: str) -> Chunk:
    """A process is known to have ended: what its workers had can be leased at once."""
    is_its = chunk.state is State.LEASED and (chunk.worker or "").startswith(f"{dead}/")
    return _ended(chunk, State.PLANNED) if is_its else chunk


def wait_s(chunk: Chunk) -> float:
    """How long the chunk waits after one more failure."""
    return backoff.wait_s(chunk.attempts + 2, chunk.number * GOLDEN % 1)


def _holds(chunk: Chunk, epoch: int) -> bool:
    return chunk.state is State.LEASED and chunk.epoch == epoch


def _failed(chunk: Chunk, error: str, until_s: float, most: int) -> Chunk:
    attempts = chunk.attempts + 1
    if attempts >= most:
        return _ended(chunk, State.FAILED, error=error, attempts=attempts)
    return replace(_ended(chunk, State.PLANNED, error=error, attempts=attempts), until_s=until_s)


def _ended(chunk: Chunk, state: State, **changes: int | str) -> Chunk:
    return replace(chunk, state=state, worker=None, until_s=0.0, **changes)  # type: ignore[arg-type]
