"""Metrics for Prometheus, computed when they are asked for: nothing is counted twice, and nothing costs at rest."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Generic, TypeVar

from headgate.clock import boot_s, unix_s
from headgate.core.figures import HEALTHS
from headgate.core.records import Totals
from headgate.telemetry.exposition import Family, escaped, labelled

FRESH_S = 5.0  # Figures of the whole installation are asked for no more often,
SHARE = 20.0  # nor before this many times what the last query took.
STATUSES = ("INIT", "STARTING", "RUNNING", "ERROR", "STOPPED")

# A stream's total → name and help of the counter. Totals are the stream's own: they never fall, wherever it runs.
TOTALS = {
    "read": ("headgate_records_read", "Records read from the source."),
    "written": ("headgate_records_written", "Records made durable in the sink."),
    "filtered": ("headgate_records_filtered", "Records that the mapping's `where` left out."),
    "dead_lettered": ("headgate_records_dead_lettered", "Records that could not be mapped or written."),
}
# A stream's count → name and help of the counter.
COUNTERS = {
    "bytes_in": ("headgate_bytes_in", "Bytes read from the source."),
    "batches": ("headgate_batches", "Batches made durable."),
    "write_s": ("headgate_write_seconds", "Time spent in the sink."),
    "errors": ("headgate_errors", "Runs that failed, whether they were tried again, rejected or quarantined."),
    "restarts": ("headgate_restarts", "Runs that failed and were tried again."),
}
GAUGES = {
    "headgate_lag_seconds": "Age of the oldest record that is not durable yet; 0 when none waits.",
    "headgate_last_event_delay_seconds": "From the newest durable record's own time to its being durable.",
    "headgate_backlog_records": "Records that wait at the source, where it can know.",
    "headgate_backlog_bytes": "Bytes that wait at the source, where it can know.",
    "headgate_freshness_seconds": "Since a batch last became durable.",
    "headgate_last_write_seconds": "How long the last batch took in the sink.",
    "headgate_worker_status": "1 for the status that the stream has, 0 for the others.",
    "headgate_datasource_health": "1 for the health that the datasource has, 0 for the others.",
    "headgate_version_rejected": "1 for a datasource whose published version was tried and rejected.",
    "headgate_registry_file_broken": "1 while the registry file of this node is not usable, else 0.",
    "headgate_datasources_active": "Datasources that should run, as this node last read the registry.",
    "headgate_trust_seconds": "How long this node may act without another answered beat.",
    "headgate_loop_delay_seconds": "How late the event loop last was.",
    "headgate_push_sessions": "Programs that push to this node now.",
    "headgate_groups": "Groups of programs that have anybody in them, of the whole installation.",
    "headgate_groups_inactive": "Those of them in which nobody is active, of the whole installation.",
    "headgate_group_consumers": "Consumers by connectivity, of the whole installation.",
    "headgate_group_ignored": "Confirmations that were nobody's or too late, of the groups that exist now.",
    "headgate_group_connections": "Connections of consumers to this node.",
    "headgate_dumps": "Dumps by how they stand, of the whole installation.",
    "headgate_streams_moving": "Streams that a node has and another should have, of the whole installation.",
}
# Gauges of each stream, and what of its figures they are.
OF_STREAMS = {
    "headgate_lag_seconds": "lag_s",
    "headgate_last_event_delay_seconds": "last_event_delay_s",
    "headgate_backlog_records": "backlog_records",
    "headgate_backlog_bytes": "backlog_bytes",
    "headgate_freshness_seconds": "",
    "headgate_last_write_seconds": "",
}
WEBHOOKS = ("headgate_webhooks", "Webhook calls, by datasource and answer.")
PUSH_RECORDS = ("headgate_push_records", "Records that programs have pushed through this node.")
PUSH_ENDS = ("headgate_push_ends", "Push sessions that have ended, by the code of their end.")
GROUP_ENDS = ("headgate_group_ends", "Connections of consumers that have ended, by the code of their end.")
HANDED_OVER = ("headgate_group_handover_seconds", "How long nobody was active in a group, until one said that it is.")
DUMP_ROWS = ("headgate_dump_rows", "Rows that dumps have copied, of the whole installation.")
DUMP_BYTES = ("headgate_dump_bytes", "Bytes that dumps have read to copy them, of the whole installation.")
BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)
CONNECTIVITIES = ("connected", "disconnected", "forgotten")
DUMP_STATUSES = ("running", "completed", "incomplete", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class PushFigures:
    """What the push door has counted."""

    sessions: int
    records: int
    ends: Counter[str]


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One stream, as its node knows it, or as the database does where no node runs it. What is None is not reported."""

    datasource: str
    stream: str
    status: str | None  # One of STATUSES; None: it was dealt everything away.
    counts: Mapping[str, float]  # By the keys of COUNTERS.
    totals: Totals | None = None  # None: programs push it, and its datasource is counted as a whole.
    lag_s: float | None = None
    last_event_delay_s: float | None = None
    backlog_records: int | None = None
    backlog_bytes: int | None = None
    last_write_s: float = 0.0
    last_record_at_s: float | None = None
    ends: tuple[str, str] = field(init=False)  # Of its labels, with a place for one between them, made once for all:
    labels: str = field(init=False)  # What each of its series is labelled with, in the order of the labels' names.

    def __post_init__(self) -> None:
        ends = f'{{datasource="{escaped(self.datasource)}",', f'stream="{escaped(self.stream)}"}}'
        object.__setattr__(self, "ends", ends)
        object.__setattr__(self, "labels", "".join(ends))


@dataclass(frozen=True, slots=True)
class DatasourceFigures:
    """What one node reports of datasources as a whole: the oldest one. Others report nothing of them."""

    healths: Sequence[tuple[str, str]] = ()  # Name and health.
    rejected: Sequence[str] = ()  # Those whose published version was rejected.
    pushed: Mapping[str, Totals] = field(default_factory=dict)  # All that programs have ever pushed, by datasource.


T = TypeVar("T")


class Asked(Generic[T]):
    """What only the database knows."""

    def __init__(self, read: Callable[[], Awaitable[T]], at_first: T, *, is_always_asked: bool = False) -> None:
        self.figures = at_first
        self._read = read
        self._is_always_asked = is_always_asked
        self._stale_at_s = 0.0

    async def refresh(self) -> None:
        """Ask the database, but not more often than every few seconds, nor for more than a small part of the time."""
        began_s = boot_s()
        if began_s >= self._stale_at_s:
            # Others who ask meanwhile get what there is.
            self._stale_at_s = began_s if self._is_always_asked else began_s + FRESH_S
            self.figures = await self._read()
            self._stale_at_s = max(self._stale_at_s, boot_s() + SHARE * (boot_s() - began_s))


class DumpFigures:
    """What is known of dumps, as of the last `refresh`: a count for each status, and `rows` and `bytes`."""

    def __init__(self, read: Callable[[], Awaitable[Mapping[str, int]]]) -> None:
        self._asked: Asked[Mapping[str, int]] = Asked(read, {})

    async def refresh(self) -> None:
        """Ask the database, if that is due."""
        await self._asked.refresh()

    def families(self) -> Iterator[Family]:
        """All of them."""
        figures = self._asked.figures
        if figures:
            yield _gauge("headgate_dumps", _by("status", {one: figures.get(one, 0) for one in DUMP_STATUSES}))
            yield _counter(DUMP_ROWS, [("", figures["rows"])])
            yield _counter(DUMP_BYTES, [("", figures["bytes"])])


class GroupFigures:
    """What is known of groups: on this node at once, of the whole installation as of the last `refresh`."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Mapping[str, int]]],
        handed_over_s: deque[float],
        open: Callable[[], int],
        ends: Counter[str],
    ) -> None:
        self._asked: Asked[Mapping[str, int]] = Asked(read, {})
        self._handed_over_s = handed_over_s
        self._open = open
        self._ends = ends
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    async def refresh(self) -> None:
        """Ask the database, if that is due."""
        await self._asked.refresh()

    def families(self) -> Iterator[Family]:
        """All of them."""
        figures = self._asked.figures
        if figures:
            yield _gauge("headgate_groups", [("", figures["groups"])])
            yield _gauge("headgate_groups_inactive", [("", figures["inactive"])])
            yield _gauge("headgate_group_consumers", _by("connectivity", {one: figures[one] for one in CONNECTIVITIES}))
            yield _gauge("headgate_group_ignored", [("", figures["ignored"])])
            yield _gauge("headgate_streams_moving", [("", figures["moving"])])
        yield _gauge("headgate_group_connections", [("", self._open())])
        yield _counter(GROUP_ENDS, _by("code", self._ends))
        yield self._handed_over()

    def _handed_over(self) -> Family:
        while self._handed_over_s:
            span_s = self._handed_over_s.popleft()
            self._counts[bisect_left(BUCKETS_S, span_s)] += 1
            self._sum_s += span_s
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        counts = list(accumulate(self._counts))
        samples = [(f'_bucket{{le="{bound}"}}', float(count)) for bound, count in zip(bounds, counts, strict=True)]
        samples += [("_count", float(counts[-1])), ("_sum", self._sum_s)]
        return Family(HANDED_OVER[0], "histogram", HANDED_OVER[1], samples)


class NodeCollector:
    """All metrics of one node: of the streams that run here, and of those at rest that are this node's to report."""

    def __init__(
        self,
        here: Callable[[], AsyncIterator[StreamFigures]],
        resting: Callable[[], Awaitable[Sequence[StreamFigures]]],
        taken: Callable[[], Awaitable[Set[str]]],
        datasources: Callable[[], Awaitable[DatasourceFigures]],
        registry_file: Callable[[], bool | None],
        active: Callable[[], int],
        trust_left_s: Callable[[], float],
        loop_delay_s: Callable[[], float],
        webhooks: Callable[[], Counter[tuple[str, int]]],
        push: Callable[[], PushFigures],
        groups: GroupFigures,
        dumps: DumpFigures,
    ) -> None:
        self._here = here
        self._resting: Asked[Sequence[StreamFigures]] = Asked(resting, ())
        # Those at rest that have a node by now, which reports them: none is counted twice.
        self._taken: Asked[Set[str]] = Asked(taken, frozenset(), is_always_asked=True)
        self._datasources: Asked[DatasourceFigures] = Asked(datasources, DatasourceFigures())
        self._registry_file = registry_file  # Whether it is broken; None: there is none.
        self._active = active
        self._trust_left_s = trust_left_s
        self._loop_delay_s = loop_delay_s
        self._webhooks = webhooks
        self._push = push
        self.groups = groups
        self.dumps = dumps

    async def refresh(self) -> None:
        """What only the database knows, if it is due."""
        await self._resting.refresh()
        await self._taken.refresh()
        await self._datasources.refresh()
        await self.groups.refresh()
        await self.dumps.refresh()

    async def families(self) -> list[Family]:
        """All of them. Those of streams are written from what the streams are now."""
        # A stream that was at rest when the database was asked may have come here since, or to another node.
        streams = {one.stream: one for one in self._resting.figures if one.stream not in self._taken.figures}
        async for one in self._here():
            streams[one.stream] = one
        found = sorted(streams.values(), key=lambda one: one.stream)
        webhooks = {
            labelled({"answer": str(answer), "datasource": name}): n for (name, answer), n in self._webhooks().items()
        }
        push = self._push()
        of_all, is_broken = self._datasources.figures, self._registry_file()
        return [
            *_totals(found, of_all.pushed),
            *_stream_counters(found),
            *_stream_gauges(found),
            *_datasource_gauges(of_all),
            *([] if is_broken is None else [_gauge("headgate_registry_file_broken", [("", is_broken)])]),
            _gauge("headgate_datasources_active", [("", self._active())]),
            _gauge("headgate_trust_seconds", [("", self._trust_left_s())]),
            _gauge("headgate_loop_delay_seconds", [("", self._loop_delay_s())]),
            _counter(WEBHOOKS, sorted(webhooks.items())),
            _gauge("headgate_push_sessions", [("", push.sessions)]),
            _counter(PUSH_RECORDS, [("", push.records)]),
            _counter(PUSH_ENDS, _by("code", push.ends)),
            *self.groups.families(),
            *self.dumps.families(),
        ]


def _totals(streams: Sequence[StreamFigures], pushed: Mapping[str, Totals]) -> Iterator[Family]:
    """One series for each stream that nodes run, and one for all streams of programs together: those come and go."""
    together = [(labelled({"datasource": name}), totals) for name, totals in sorted(pushed.items())]
    each = [(one.labels, one.totals) for one in streams if one.totals is not None]
    for total, name in TOTALS.items():
        yield _counter(name, _of_all(total, (*together, *each)))


def _of_all(total: str, found: Sequence[tuple[str, Totals]]) -> Iterator[tuple[str, float]]:
    for labels, totals in found:
        yield labels, getattr(totals, total)


def _datasource_gauges(figures: DatasourceFigures) -> Iterator[Family]:
    yield _gauge("headgate_datasource_health", (one for name, word in figures.healths for one in _healths(name, word)))
    rejected = [(labelled({"datasource": name}), 1.0) for name in figures.rejected]
    yield _gauge("headgate_version_rejected", rejected)


def _healths(name: str, present: str) -> Iterator[tuple[str, float]]:
    datasource = escaped(name)
    for word in HEALTHS:
        yield f'{{datasource="{datasource}",status="{word}"}}', float(word == present)


def _stream_counters(streams: Sequence[StreamFigures]) -> Iterator[Family]:
    for count, name in COUNTERS.items():
        yield _counter(name, _counts(count, streams))


def _counts(count: str, streams: Sequence[StreamFigures]) -> Iterator[tuple[str, float]]:
    for one in streams:
        if count in one.counts:
            yield one.labels, one.counts[count]


def _stream_gauges(streams: Sequence[StreamFigures]) -> Iterator[Family]:
    now_s = unix_s()
    seen = [(one, one.last_record_at_s) for one in streams if one.last_record_at_s is not None]
    for name, of in OF_STREAMS.items():
        if of:
            yield _gauge(name, _known(of, streams))
    yield _gauge("headgate_freshness_seconds", ((one.labels, max(0.0, now_s - last_s)) for one, last_s in seen))
    yield _gauge("headgate_last_write_seconds", ((one.labels, one.last_write_s) for one, _ in seen))
    yield _gauge("headgate_worker_status", (sample for one in streams for sample in _statuses(one)))


def _known(of: str, streams: Sequence[StreamFigures]) -> Iterator[tuple[str, float]]:
    for one in streams:
        if (value := getattr(one, of)) is not None:
            yield one.labels, value


def _statuses(stream: StreamFigures) -> Iterator[tuple[str, float]]:
    begin, end = stream.ends
    for status in STATUSES if stream.status is not None else ():
        yield f'{begin}status="{status}",{end}', float(status == stream.status)


def _by(label: str, counts: Mapping[str, float]) -> list[tuple[str, float]]:
    """A series for each value of one label."""
    return [(labelled({label: value}), count) for value, count in sorted(counts.items())]


def _counter(name: tuple[str, str], samples: Iterable[tuple[str, float]]) -> Family:
    return Family(f"{name[0]}_total", "counter", name[1], samples)


def _gauge(name: str, samples: Iterable[tuple[str, float]]) -> Family:
    return Family(name, "gauge", GAUGES[name], samples)
