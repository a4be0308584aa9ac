"""What happens now, for all who follow it: events and log lines are read once for everybody.

A *feed* is one question that rows with rising ids answer. While somebody follows it, it is asked once a second, and
soon after a wake-up that says that there is something. The latest rows are kept, each with the bytes that are sent of
it, and every follower takes from them what is after the last row that it has looked at, and what it may see and wants
to see. A follower that is farther behind, because it comes back or reads slowly, reads its own past until it has caught
up.

Rows become visible in the order of their ids, so no row is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

import msgspec
import structlog

from headgate.errors import StoreError
from headgate.runtime.node import Node
from headgate.store.events import Recorded, Which
from headgate.store.logs import Kept, Named
from headgate.web import sse
from headgate.web.api import views

EVERY_S = 1.0
LEAST_S = 0.5  # Between two readings, however many wake-ups there are.
MOST_KEPT = 2000  # Rows of a feed.


class Numbered(Protocol):
    """A row with a rising id."""

    @property
    def id(self) -> int:
        """Its place among the others."""


K = TypeVar("K")
R = TypeVar("R", bound=Numbered)

Read: TypeAlias = Callable[[int], Awaitable[Sequence[R]]]
"""The rows after an id, the oldest first. There may be more than one reading returns."""

Hear: TypeAlias = Callable[[Callable[[int], None]], Callable[[], None]]
"""Have this called at each wake-up. Returns what ends that."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Item(Generic[R]):
    """A row, and what is sent of it."""

    row: R
    event: bytes


class Feed(Generic[R]):
    """One question, and the latest answers."""

    def __init__(
        self,
        last: Callable[[], Awaitable[int]],
        read: Read[R],
        show: Callable[[R], msgspec.Struct],
        hear: Hear,
        every_s: float = EVERY_S,
        least_s: float = LEAST_S,
    ) -> None:
        self._last, self._read, self._show, self._hear = last, read, show, hear
        self._every_s, self._least_s = every_s, least_s
        self._from: int | None = None  # All rows after this one are kept. None: nobody has followed yet.
        self._upto = 0  # As far as it has been read.
        self._kept: deque[Item[R]] = deque()
        self._followers = 0
        self._next = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    @property
    def is_followed(self) -> bool:
        """Whether it is read."""
        return self._reading is not None

    async def follow(self, after: int, past: Read[R], fits: Callable[[R], bool]) -> AsyncIterator[bytes]:
        """What is after this id and fits, each once and in order, and signs of life. `past` reads what this follower
        has missed; it may leave out what does not fit."""
        with self._following():
            while True:
                news = self._next
                after, found = await self._after(after, past)
                fitting = [one.event for one in found if fits(one.row)]
                for event in fitting:
                    yield event
                if not fitting:
                    yield sse.ALIVE  # The caller may be gone, or its token may have ended.
                if not found:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(sse.ALIVE_S):
                            await news.wait()

    async def _after(self, after: int, past: Read[R]) -> tuple[int, list[Item[R]]]:
        """What there is after this id, and how far that goes."""
        begins = self._from
        if begins is not None and after >= begins:
            return max(after, self._upto), [one for one in self._kept if one.row.id > after]
        found: list[Item[R]] = []
        with contextlib.suppress(StoreError):
            found = list(map(self._item, await past(after)))
            after = found[-1].row.id if found else max(after, begins or 0)
        return after, found

    @contextlib.contextmanager
    def _following(self) -> Iterator[None]:
        self._followers += 1
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_on(), name="feed")
        try:
            yield
        finally:
            self._followers -= 1

    async def _read_on(self) -> None:
        """Until nobody follows."""
        woken = asyncio.Event()
        stop = self._hear(lambda number: woken.set())
        try:
            while self._followers:
                woken.clear()
                try:
                    await self._read_new()
                except StoreError:
                    log.debug("a feed is not read while the database is away")
                except Exception:
                    log.exception("a feed could not be read")
                await asyncio.sleep(self._least_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._every_s - self._least_s):
                        await woken.wait()
        finally:
            stop()
            self._from = self._reading = None
            self._kept.clear()

    async def _read_new(self) -> None:
        if self._from is None:
            self._from = self._upto = await self._last()
            self._tell()
        while rows := await self._read(self._upto):
            self._kept.extend(map(self._item, rows))
            self._upto = rows[-1].id
            while len(self._kept) > MOST_KEPT:
                self._from = self._kept.popleft().row.id
            self._tell()

    def _tell(self) -> None:
        news, self._next = self._next, asyncio.Event()
        news.set()

    def _item(self, row: R) -> Item[R]:
        return Item(row, sse.event(msgspec.json.encode(self._show(row), enc_hook=str), row.id))


class Feeds:
    """The feeds of a node: events of everything, and log lines of everything or of one datasource."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.events: Feed[Recorded] = Feed(
            self.last_event,
            lambda id: node.registry.events.following(Which(), id),
            views.event,
            lambda call: node.listener.on("events", call),
        )
        self._named: dict[str | None, Feed[Named]] = {}
        self._lines: dict[UUID, Feed[Kept]] = {}

    async def last_event(self) -> int:
        """The id of the latest event; 0 if there is none."""
        found = await self._node.registry.events.last(None, 1)
        return found[-1].id if found else 0

    def logs(self, name: str | None) -> Feed[Named]:
        """The lines of all datasources, or of the one with this name."""
        logs = self._node.logs
        return self._of_lines(self._named, name, lambda id: logs.following(name, id), views.named_line)

    def lines(self, datasource: UUID) -> Feed[Kept]:
        """The lines of one datasource, without its name."""
        logs = self._node.logs
        return self._of_lines(self._lines, datasource, lambda id: logs.after(datasource, id), views.line)

    def _of_lines(self, feeds: dict[K, Feed[R]], key: K, read: Read[R], show: Callable[[R], msgspec.Struct]) -> Feed[R]:
        """The feed of this key. A new one takes the place of those that nobody follows any more."""
        if key not in feeds:
            for old in [one for one, kept in feeds.items() if not kept.is_followed]:
                del feeds[old]
            node = self._node
            feeds[key] = Feed(node.logs.last, read, show, lambda call: node.listener.on("logs", call))
        return feeds[key]
