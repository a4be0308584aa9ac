"""What a node knows of a stream that it runs, apart from the totals: counted as batches come and go."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from headgate.clock import unix_s
from headgate.connectors.api import Backlog, Batch
from headgate.core.figures import STALE_S, Reported, Sample, sampled
from headgate.core.records import Totals


class LastHour:
    """How many records there were in each of the last sixty minutes, in half a kilobyte."""

    __slots__ = ("_counts", "_minute")

    def __init__(self) -> None:
        self._counts = array("q", bytes(60 * 8))
        self._minute = 0

    def add(self, number: int, now_s: float) -> None:
        """Count this many, now."""
        self._turn(now_s)
        self._counts[self._minute % 60] += number

    def total(self, now_s: float) -> int:
        """All of the last hour."""
        self._turn(now_s)
        return sum(self._counts)

    def _turn(self, now_s: float) -> None:
        minute = int(now_s // 60)
        for passed in range(max(self._minute + 1, minute - 59), minute + 1):
            self._counts[passed % 60] = 0
        self._minute = max(self._minute, minute)


@dataclass(slots=True)
class Stats:
    """What a stream has done, and what it is about. Counters only rise."""

    bytes_in: int = 0
    batches: int = 0
    errors: int = 0  # Runs that failed, whatever came of it.
    restarts: int = 0  # Those of them that were tried again.
    write_s: float = 0.0  # Spent in the sink, in all.
    last_write_s: float = 0.0
    last_record_at_s: float | None = None  # When the newest batch became durable.
    last_event_delay_s: float | None = None  # From the newest durable record's own time to its being durable.
    last_hour: LastHour = field(default_factory=LastHour)
    waiting_since_s: float | None = None  # The time of the oldest record in hand.
    reading_since_s: float | None = None
    writing_since_s: float | None = None
    backlog: Backlog | None = None
    backlog_since_s: float | None = None  # Since when it has been there while nothing was read.
    samples: tuple[Sample, ...] = ()
    longest_lag_s: float = 0.0  # Since the last minute was written.
    bytes_kept: int = 0  # Of `bytes_in`, those that minutes have.
    _above: int = 0  # How many records had been read for good when this was last reported.
    _ahead_s: float | None = None  # The time of the batch that was read ahead of the one being written.

    @classmethod
    def after(cls, last: Reported | None) -> Stats:
        """Those of a stream that a node takes over: counts go on, and what was blocked there is blocked."""
        if last is None:
            return cls()
        return cls(
            bytes_in=last.bytes_in,
            batches=last.batches,
            errors=last.errors,
            restarts=last.restarts,
            write_s=last.write_s,
            last_write_s=last.last_write_s,
            last_record_at_s=last.last_record_at_s,
            last_event_delay_s=last.last_event_delay_s,
            waiting_since_s=last.waiting_since_s,
            samples=last.samples,
            bytes_kept=last.bytes_in,
            _above=last.waiting_above,
        )

    # What a run does.

    def opened(self, totals: Totals) -> None:
        """A run begins. What it moves is compared with now, unless it follows close on another."""
        now_s = unix_s()
        if not self.samples or now_s - self.samples[-1].at_s > STALE_S:
            self.samples = sampled((), totals, now_s)

    def reads(self) -> None:
        """The source is asked for more."""
        self.reading_since_s = unix_s()

    def has_read(self, batch: Batch) -> None:
        """The source has answered. A batch that failed is in hand until it, or one in its place, is durable."""
        now_s = unix_s()
        self.reading_since_s = self.backlog_since_s = None
        event_s = now_s if batch.event_time_s is None else min(batch.event_time_s, now_s)
        if self.waiting_since_s is None or self.writing_since_s is None:
            self.waiting_since_s = min(event_s, self.waiting_since_s or event_s)
        else:
            self._ahead_s = event_s

    def writes(self) -> None:
        """The batch in hand is being written."""
        self.writing_since_s = unix_s()

    def committed(self, batch: Batch, written: int, took_s: float) -> None:
        """The batch in hand is durable."""
        now_s = unix_s()
        self.last_write_s = took_s
        self.write_s += took_s
        self.bytes_in += batch.size_bytes
        self.batches += 1
        self.last_record_at_s = now_s
        self.last_hour.add(written, now_s)
        if batch.event_time_s is not None:
            self.last_event_delay_s = max(0.0, now_s - batch.event_time_s)
        self.longest_lag_s = max(self.longest_lag_s, now_s - (self.waiting_since_s or now_s))
        self.waiting_since_s, self._ahead_s, self.writing_since_s = self._ahead_s, None, None

    def rests(self) -> None:
        """The run has ended in good order: what was read ahead is somebody else's to read."""
        self.waiting_since_s = self._ahead_s = self.reading_since_s = self.writing_since_s = None
        self.backlog = self.backlog_since_s = None

    def fails(self) -> None:
        """The run has failed. What it had in hand waits on."""
        self.errors += 1
        self._ahead_s = self.reading_since_s = self.writing_since_s = self.backlog_since_s = None

    # What is reported of it.

    def sees(self, backlog: Backlog | None) -> None:
        """This much waits at the source now."""
        self.backlog = backlog
        if backlog is None or not backlog.records or self.reading_since_s is None:
            self.backlog_since_s = None
        elif self.backlog_since_s is None:
            self.backlog_since_s = unix_s()

    def sample(self, totals: Totals) -> None:
        """Note the totals of now, for rates."""
        self.samples = sampled(self.samples, totals, unix_s())

    def minute(self) -> tuple[int, float]:
        """The bytes that were read since this was last asked for, and the longest lag there was."""
        waited_s = 0.0 if self.waiting_since_s is None else unix_s() - self.waiting_since_s
        found = self.bytes_in - self.bytes_kept, max(self.longest_lag_s, waited_s)
        self.bytes_kept, self.longest_lag_s = self.bytes_in, 0.0
        return found

    def reported(self, totals: Totals) -> Reported:
        """As they are now, for the state table and for answers."""
        self._above = max(self._above, totals.read)  # Before a run has acquired the stream, its totals are not known.
        return Reported(
            self.bytes_in,
            self.batches,
            self.errors,
            self.restarts,
            self.write_s,
            self.last_write_s,
            self.last_record_at_s,
            self.last_event_delay_s,
            self.last_hour.total(unix_s()),
            self.waiting_since_s,
            self._above if self.waiting_since_s is not None else 0,
            self.reading_since_s,
            self.writing_since_s,
            self.backlog,
            self.backlog_since_s,
            self.samples,
        )
