"""The overview: read once a second while somebody looks, rendered once, and sent to all who look.

A *snapshot* is every datasource in one line. Who begins to look gets all of it; who has seen the snapshot before gets
what differs: of each datasource that changed its name and the fields that did, or a sign of life if none did. What a
token may not see is left out of the text, not read apart: all who see the same share the same bytes, zipped or not. A
page of the console sees a part of it (`windows.py`).

A snapshot is made of the one before and of what has changed since (`lines.py`), so it costs what has changed, however
many datasources there are. While nobody looks one is taken now and then all the same, for who opens the first page
next: the first one takes longer than somebody wants to wait for a page, and so does one after much has changed.

While the database is away nothing can be read. Who looks is told so by the end of the stream, and by a 503 when it asks
again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
import structlog

from headgate.clock import boot_s
from headgate.core.access import ANYONE, Bounds, Caller, may
from headgate.errors import StoreError
from headgate.slices import SLICE, sliced
from headgate.web import sse
from headgate.web.bodies.datasources import Overview, Summary
from headgate.web.subjects import sees
from headgate.web.windows import Changes, Row, Window, Windows

EVERY_S = 1.0
SHARE = 30.0  # The next snapshot waits for this many times the processor time of the last: 3 % of a core for all who
MOST_PAUSE_S = 2.0  # look, unless so very much changes that what is shown would be old.
ALIVE_S = 2.0  # A console takes a node that is silent for 6 s for lost.
LINGER_S = 10.0  # It is read on for a while after the last has left: who comes back finds it there.
AWAY_AFTER = 2  # Readings that fail, one after another.
SELDOM_S = 10.0  # While nobody looks.
SELDOM_SHARE = 200.0  # Then it may cost a two-hundredth of a core,
MOST_SELDOM_S = 20.0  # unless what has changed meanwhile would take long to read.
MOST_OLD_S = 2.0  # What is older is not shown.

# The figures that people compare over all datasources. The others change with every batch, and are shown for one.
SHOWN = (
    "records_read",
    "records_written",
    "records_filtered",
    "records_dead_lettered",
    "records_skipped",
    "read_per_s",
    "written_per_s",
    "lag_s",
    "backlog_records",
    "backlog_bytes",
    "errors",
    "restarts",
    "last_record_at_s",
)

log = structlog.get_logger()


class Snapshot:
    """Every datasource at one moment."""

    number: int
    taken_at_s: float  # By `boot_s`.
    windows: Windows

    def __init__(
        self,
        overview: Overview,
        lines: Mapping[str, Summary],
        rows: Mapping[str, Row],
        changes: Changes,
        before: Snapshot | None,
    ) -> None:
        self.number = 1 if before is None else before.number + 1
        self.taken_at_s = boot_s()
        self._lines = lines  # By name.
        self._rows = rows
        self._news = changes
        self._nodes = nodes = _encoded(overview.nodes)
        self._at_s = _encoded(overview.at_s)
        self._are_nodes_new = before is not None and before._nodes != nodes
        self.windows = Windows(rows, changes, nodes, self._at_s, None if before is None else before.windows)
        self._texts: dict[tuple[str, Bounds | None], bytes] = {}

    @classmethod
    async def take(cls, overview: Overview, before: Snapshot | None) -> Snapshot:
        """Compare those that are not the same objects, and let others have the loop in between."""
        known, kept = ({}, {}) if before is None else (before._lines, before._rows)
        lines = {one.name: one for one in overview.datasources}
        made: dict[str, Row] = {}
        async for some in sliced([one for one in overview.datasources if known.get(one.name) is not one], SLICE):
            for one in some:
                made[one.name] = _row(one)
        rows = {name: made.get(name) or kept[name] for name in lines}
        changed = {} if before is None else {name: row for name, row in made.items() if row != kept.get(name)}
        gone = kept.keys() - lines.keys()
        changes = Changes(
            {name: _encoded(_difference(kept.get(name), row)) for name, row in changed.items()},
            {name: kept[name] for name in (*changed, *gone) if name in kept},
            gone,
        )
        return cls(overview, lines, rows, changes, before)

    def whole(self, caller: Caller) -> bytes:
        """All that this caller sees, as JSON. It is rendered once for all whose tokens have the same bounds."""
        return self._once("whole", caller, lambda: self._whole(caller))

    def event(self, seen: int | None, caller: Caller, *, zipped: bool = False) -> bytes:
        """The next server-sent event for somebody who last saw the snapshot of this number."""
        if zipped:
            what = "zipped changes" if seen == self.number - 1 else "zipped event"
            return self._once(what, caller, lambda: sse.zipped(self.event(seen, caller)))
        if seen == self.number - 1:
            return self._once("changes", caller, lambda: self._changes(caller))
        return self._once("event", caller, lambda: sse.event(self.whole(caller)))

    def _once(self, what: str, caller: Caller, render: Callable[[], bytes]) -> bytes:
        key = (what, caller.bounds)
        if key not in self._texts:
            self._texts[key] = render()
        return self._texts[key]

    def _whole(self, caller: Caller) -> bytes:
        rows = (_encoded(row) for name, row in self._rows.items() if sees(caller, name))
        return self._text(rows, (), caller, is_whole=True)

    def _changes(self, caller: Caller) -> bytes:
        changed = [text for name, text in self._news.texts.items() if sees(caller, name)]
        gone = sorted(name for name in self._news.gone if sees(caller, name))
        if not changed and not gone and not (self._are_nodes_new and may(caller, "see_all")):
            return sse.ALIVE
        return sse.event(self._text(changed, gone, caller, is_whole=False))

    def _text(self, rows: Iterable[bytes], gone: Iterable[str], caller: Caller, *, is_whole: bool) -> bytes:
        """The JSON of an `Overview`, put together from rows that are encoded already."""
        nodes = self._nodes if may(caller, "see_all") else b"[]"
        parts = (b",".join(rows), nodes, self._at_s, _encoded(is_whole), _encoded(gone))
        return b'{"datasources":[%b],"nodes":%b,"at_s":%b,"is_whole":%b,"gone":%b}' % parts


def _row(one: Summary) -> Row:
    fields: Row = msgspec.to_builtins(one, enc_hook=str)
    fields["metrics"] = {figure: fields["metrics"][figure] for figure in SHOWN}
    return fields


def _difference(old: Row | None, new: Row) -> Row:
    """The name, and what differs."""
    if old is None:
        return new
    found = {"name": new["name"], **{field: value for field, value in new.items() if old[field] != value}}
    if "metrics" in found:
        before = old["metrics"]
        found["metrics"] = {figure: value for figure, value in new["metrics"].items() if before[figure] != value}
    return found


class Overviews:
    """Reads snapshots while somebody looks."""

    def __init__(
        self, read: Callable[[], Awaitable[Overview]], every_s: float = EVERY_S, linger_s: float = LINGER_S
    ) -> None:
        self._read = read
        self._every_s, self._linger_s = every_s, linger_s
        self._lookers = 0
        self._left_s = 0.0  # When the last one left.
        self._latest: Snapshot | None = None  # None: nobody has looked for a while, or the database is away.
        self._last: Snapshot | None = None  # The last one that was taken. The next one is made of it.
        self._taking = asyncio.Lock()
        self._next = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def latest(self) -> Snapshot:
        """The snapshot that those who look see now."""
        with self._looking():
            return self._latest or await self._after()

    async def keep(self) -> None:
        """Read now and then while nobody looks, until cancelled."""
        while True:
            worked_s = time.thread_time()
            if self._reading is None:
                try:
                    (await self._take()).windows.rows(ANYONE, Window())  # What the first page shows is in order then.
                except StoreError:
                    log.debug("the overview is not kept while the database is away")
                except Exception:
                    log.exception("the overview could not be read")
            worked_s = time.thread_time() - worked_s
            await asyncio.sleep(max(SELDOM_S, min(SELDOM_SHARE * worked_s, MOST_SELDOM_S)))

    async def _take(self) -> Snapshot:
        async with self._taking:
            self._last = await Snapshot.take(await self._read(), self._last)
            return self._last

    async def soon(self, within_s: float) -> Snapshot | None:
        """The same; or nothing if it takes longer, and it is read on."""
        if self._latest is None and self._last is not None and boot_s() - self._last.taken_at_s < MOST_OLD_S:
            with self._looking():
                return self._last
        try:
            async with asyncio.timeout(within_s):
                return await self.latest()
        except TimeoutError:
            return None

    def events(self, caller: Caller, *, zipped: bool = False) -> AsyncIterator[bytes]:
        """All of it, then what changes."""
        return self._events(lambda seen, snapshot: snapshot.event(seen, caller, zipped=zipped), zipped=zipped)

    def window(self, caller: Caller, window: Window, *, zipped: bool = False) -> AsyncIterator[bytes]:
        """What a window shows, then what changes in it."""

        def event(seen: int | None, snapshot: Snapshot) -> bytes:
            is_next = seen == snapshot.number - 1
            return snapshot.windows.event(caller, window, is_next=is_next, zipped=zipped)

        return self._events(event, zipped=zipped)

    async def _events(self, event: Callable[[int | None, Snapshot], bytes], *, zipped: bool) -> AsyncIterator[bytes]:
        with self._looking():
            seen, snapshot = None, self._latest or await self._after()
            if zipped:
                yield sse.ZIPPED_HEAD
            while True:
                yield event(seen, snapshot)
                seen, following = snapshot.number, asyncio.ensure_future(self._after())
                try:
                    while not (await asyncio.wait([following], timeout=ALIVE_S))[0]:
                        yield sse.zipped(sse.ALIVE) if zipped else sse.ALIVE
                    snapshot = await following
                except StoreError:
                    return  # Who asks again is told so.
                finally:
                    following.cancel()

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self._lookers += 1
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_on(), name="overview")
        try:
            yield
        finally:
            self._lookers -= 1
            self._left_s = boot_s()

    async def _after(self) -> Snapshot:
        """The next snapshot. Raises StoreError if the database is away."""
        await self._next.wait()
        if self._latest is None:
            raise StoreError("the database does not answer")
        return self._latest

    async def _read_on(self) -> None:
        """Read until nobody has looked for a while."""
        failures = 0
        while self._lookers or boot_s() < self._left_s + self._linger_s:
            began_s, worked_s = boot_s(), time.thread_time()
            try:
                self._tell(await self._take())
                failures = 0
            except StoreError:
                failures += 1
                if failures >= AWAY_AFTER:
                    self._tell(None)
            except Exception:
                log.exception("the overview could not be read")
            took_s, worked_s = boot_s() - began_s, time.thread_time() - worked_s
            await asyncio.sleep(max(self._every_s - took_s, min(SHARE * worked_s, MOST_PAUSE_S)))
        self._latest = self._reading = None

    def _tell(self, latest: Snapshot | None) -> None:
        self._latest = latest
        news, self._next = self._next, asyncio.Event()
        news.set()


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)
