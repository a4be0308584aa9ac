"""What a stream has done and what waits: values that the runtime reports and people see.

What a stream has handled is in its totals (`core.records`), which are kept with its progress and are the same wherever
they are read. The rest is *reported* by the node that runs it, a few seconds old where another node shows it. `figures`
puts the two together, for one moment. So every view shows the same numbers, whichever node it asks:

- A *rate* is the difference of two samples of the totals, which the holder takes five seconds apart. It is right from
  the first look, because nobody has to look twice. Once the samples are old, the totals of now are compared with them.
- *Lag* is the age of the oldest record that is not durable yet. It grows while a stream is blocked, and is 0 when
  nothing waits. What the holder reported holds until more records became durable.
- *Backlog* is what waits at the source, where the source can know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.core.records import NOTHING, Totals

# How a datasource is, the worst first.
HEALTHS = ("error", "no_node", "degraded", "starting", "paused", "stopped", "unpublished", "ended", "ok")

SAMPLE_S = 5.0  # Between two samples of a stream that moves.
STALE_S = SAMPLE_S + 2.0  # An older sample says that nothing moved since, or that its node is late.
LEAST_SPAN_S = 1.0  # Totals are saved once a second: over less time they say nothing.


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits at a source and has not been read. What the source cannot know is None."""

    records: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class InboxBacklog:
    """What waits in the inbox of a webhook."""

    records: int
    bytes: int
    oldest_at_s: float | None  # When the oldest of it came, in Unix time; None: nothing waits.


@dataclass(frozen=True, slots=True)
class Sample:
    """The totals of a stream at one moment."""

    at_s: float
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class Reported:
    """What the node that runs a stream knows of it, apart from its totals. Counts go on where the last node left off,
    as far as that has said so."""

    bytes_in: int = 0
    batches: int = 0
    errors: int = 0  # Runs that failed, quarantined ones among them.
    restarts: int = 0  # Runs that failed and were tried again.
    write_s: float = 0.0  # Spent in the sink, in all.
    last_write_s: float = 0.0
    last_record_at_s: float | None = None  # When the newest batch became durable, in Unix time.
    last_event_delay_s: float | None = None  # From the newest durable record's own time to its being durable.
    last_hour: int = 0  # Records written in the last hour.
    waiting_since_s: float | None = None  # The time of the oldest record in hand; None: none is in hand.
    waiting_above: int = 0  # How many records had been read for good then: more, and that one is durable.
    reading_since_s: float | None = None  # Since when the source has been asked for more.
    writing_since_s: float | None = None  # Since when the batch in hand is being written.
    backlog: Backlog | None = None
    backlog_since_s: float | None = None  # Since when it has been there while nothing was read.
    samples: tuple[Sample, ...] = ()  # At most two, the older one first.


@dataclass(frozen=True, slots=True)
class Figures:
    """What people see of a stream, or of all streams of a datasource together."""

    records_read: int = 0
    records_written: int = 0
    records_filtered: int = 0
    records_dead_lettered: int = 0
    records_skipped: int = 0  # Those of the dead-lettered that were discarded at once.
    read_per_s: float | None = None  # None: not known yet.
    written_per_s: float | None = None
    lag_s: float = 0.0  # The age of the oldest record that is not durable yet; 0: none waits.
    last_event_delay_s: float | None = None  # From the newest durable record's own time to its being durable.
    backlog_records: int | None = None  # None: the source cannot know it.
    backlog_bytes: int | None = None
    bytes_in: int = 0
    batches: int = 0
    errors: int = 0
    restarts: int = 0
    write_s: float = 0.0
    last_write_s: float = 0.0
    last_record_at_s: float | None = None
    last_hour: int = 0


@dataclass(frozen=True, slots=True)
class LastFailure:
    """Why the last run failed, and when the next one begins."""

    cause: str  # One of `errors.Cause`.
    message: str
    next_try_at_s: float | None = None  # In Unix time; None: it is not tried again by itself.
    awaits_return: bool = False  # It is tried earlier, if what it waits for is back before.


def figures(
    totals: Totals, reported: Reported, now_s: float, *, moves: bool, inbox: InboxBacklog | None = None
) -> Figures:
    """A stream at this moment. `moves` says whether it runs; `inbox` is what waits for it in the database."""
    read_per_s, written_per_s = map(_rounded, rates(totals, reported.samples, now_s) if moves else (0.0, 0.0))
    backlog = inbox or reported.backlog or Backlog()
    return Figures(
        totals.read,
        totals.written,
        totals.filtered,
        totals.dead_lettered,
        totals.skipped,
        read_per_s,
        written_per_s,
        round(lag_s(totals, reported, now_s, inbox), 3),
        reported.last_event_delay_s,
        backlog.records,
        backlog.bytes,
        reported.bytes_in,
        reported.batches,
        reported.errors,
        reported.restarts,
        reported.write_s,
        reported.last_write_s,
        reported.last_record_at_s,
        reported.last_hour,
    )


def _rounded(per_s: float | None) -> float | None:
    """What people can tell apart: these go out to all who look, every second."""
    return None if per_s is None else round(per_s, 2)


def rates(totals: Totals, samples: Sequence[Sample], now_s: float) -> tuple[float | None, float | None]:
    """Records read and written in a second; None: not known yet."""
    if not samples:
        return None, None
    last = samples[-1]
    if len(samples) > 1 and now_s - last.at_s < STALE_S:
        span_s, before = last.at_s - samples[-2].at_s, samples[-2]
        read, written = last.read - before.read, last.written - before.written
    else:
        span_s, read, written = now_s - last.at_s, totals.read - last.read, totals.written - last.written
    if span_s < LEAST_SPAN_S:
        return None, None
    # A registry that went back in time has totals that are lower than a sample.
    return max(0, read) / span_s, max(0, written) / span_s


def lag_s(totals: Totals, reported: Reported, now_s: float, inbox: InboxBacklog | None = None) -> float:
    """The age of the oldest record that is not durable yet; 0 if none waits."""
    if inbox is not None:
        return 0.0 if inbox.oldest_at_s is None else max(0.0, now_s - inbox.oldest_at_s)
    since_s = reported.waiting_since_s
    if since_s is None:
        return 0.0
    if totals.read > reported.waiting_above:  # That one is durable by now: the lag is what it was.
        return max(0.0, reported.samples[-1].at_s - since_s) if reported.samples else 0.0
    return max(0.0, now_s - since_s)


def is_steady(totals: Totals, reported: Reported, now_s: float, *, moves: bool) -> bool:
    """Whether the figures stay as they are, however late it becomes, until more is moved or reported. Of what waits in
    the database this knows nothing."""
    if (reported.waiting_since_s, reported.writing_since_s, reported.backlog_since_s) != (None, None, None):
        return False
    if not moves or not reported.samples:
        return True
    last = reported.samples[-1]
    return now_s - last.at_s >= STALE_S and (totals.read, totals.written) == (last.read, last.written)


def sampled(samples: Sequence[Sample], totals: Totals, now_s: float) -> tuple[Sample, ...]:
    """The samples after one more was taken. Of a stream at rest two are enough, so that nothing is written again."""
    taken = Sample(now_s, totals.read, totals.written)
    if len(samples) > 1 and all((one.read, one.written) == (taken.read, taken.written) for one in samples):
        return tuple(samples)
    return (*samples[-1:], taken)


def together(all_of_them: Sequence[Figures], others: Totals = NOTHING) -> Figures:
    """All streams of a datasource: what can be counted adds up, lag is the longest, the rest is the newest stream's.

    `others` are the totals of streams that are not among them.
    """
    if len(all_of_them) == 1 and others == NOTHING:
        return all_of_them[0]
    newest = max(all_of_them, key=lambda one: one.last_record_at_s or 0.0, default=Figures())
    return Figures(
        sum((one.records_read for one in all_of_them), others.read),
        sum((one.records_written for one in all_of_them), others.written),
        sum((one.records_filtered for one in all_of_them), others.filtered),
        sum((one.records_dead_lettered for one in all_of_them), others.dead_lettered),
        sum((one.records_skipped for one in all_of_them), others.skipped),
        _added([one.read_per_s for one in all_of_them]),
        _added([one.written_per_s for one in all_of_them]),
        max((one.lag_s for one in all_of_them), default=0.0),
        newest.last_event_delay_s,
        _whole([one.backlog_records for one in all_of_them]),
        _whole([one.backlog_bytes for one in all_of_them]),
        sum(one.bytes_in for one in all_of_them),
        sum(one.batches for one in all_of_them),
        sum(one.errors for one in all_of_them),
        sum(one.restarts for one in all_of_them),
        sum(one.write_s for one in all_of_them),
        newest.last_write_s,
        newest.last_record_at_s,
        sum(one.last_hour for one in all_of_them),
    )


def _added(found: Sequence[float | None]) -> float | None:
    """The sum of those that are known; None: none is, though there are some."""
    known = [one for one in found if one is not None]
    return sum(known) if known or not found else None


def _whole(found: Sequence[int | None]) -> int | None:
    known = [one for one in found if one is not None]
    return sum(known) if known else None
