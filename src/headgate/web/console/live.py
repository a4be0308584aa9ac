"""Pages that stay fresh. A page that is asked for as a stream of events is drawn again once a second, and sent again
when it has changed.

Who sees the same page shares one *drawing* of it, so a page that fifty people have open costs what it costs one. What a
page shows follows from its address and from what its reader may see, and from nothing else of the reader; a page that
says more than that names the token (`View.token`). A stream begins with a page that was drawn after it was asked for:
that is how an action is seen at once (`again.js`).

Many different pages are drawn less often, so that all together cost a twentieth of a core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

import msgspec
import structlog
from litestar import Response

from headgate.clock import boot_s
from headgate.core.access import Bounds, Role
from headgate.errors import HeadgateError, StoreError
from headgate.web import sse

EVERY_S = 1.0
SHARE = 20.0  # A page waits for this many times the processor time of its last drawing, times the pages that are open.
MOST_PAUSE_S = 10.0
ALIVE_S = 2.0  # A console takes a node that is silent for 6 s for lost.
MAIN = ('<main id="main" tabindex="-1">', "</main>")  # As `frame.html` has it.

Draw: TypeAlias = Callable[[], Awaitable[Response[str]]]

log = structlog.get_logger()

_ALIVE = {False: sse.ALIVE, True: sse.zipped(sse.ALIVE)}


@dataclass(frozen=True, slots=True)
class View:
    """Two who have the same one see the same."""

    base: str  # Some pages show the address of the node, as their reader has it.
    address: str  # With its query.
    role: Role
    bounds: Bounds | None
    token: UUID | None = None  # Of a page that is not the same for all of this role.


@dataclass(frozen=True, slots=True)
class Drawn:
    """A page at one moment."""

    number: int  # Of the drawing. A stream begins with one that began after it.
    events: tuple[bytes, bytes] = (b"", b"")  # Plain and zipped.

    def event(self, *, zipped: bool) -> bytes:
        """What is sent of it."""
        return self.events[zipped]


class Drawing:
    """One page, drawn again and again while somebody looks at it."""

    def __init__(self, draw: Draw) -> None:
        self.lookers = 0
        self.asked = asyncio.Event()  # Somebody waits for it.
        self.latest = Drawn(0)
        self._draw = draw
        self._begun = 0
        self._text = b""
        self._failure: HeadgateError | None = None
        self._next = asyncio.Event()

    def ask(self) -> int:
        """The number of the first drawing that begins from here on."""
        self.asked.set()
        return self._begun + 1

    async def after(self, number: int) -> Drawn:
        """The first one that has this number or a later one. Raises what kept it from being drawn."""
        while self.latest.number < number and self._failure is None:
            await self._next.wait()
        if self._failure is not None:
            raise self._failure
        return self.latest

    async def once(self) -> bool:
        """Draw it, and tell those who wait. False: it cannot be drawn, which they are told, too."""
        self._begun += 1
        self.asked.clear()
        try:
            text = _event(await self._draw())
            if text == self._text:
                self.latest = replace(self.latest, number=self._begun)
            else:
                self._text, self.latest = text, Drawn(self._begun, (text, sse.zipped(text)))
        except HeadgateError as error:
            self._failure = error
        except Exception:
            log.exception("a page could not be drawn")
            self._failure = StoreError("the page could not be drawn")
        news, self._next = self._next, asyncio.Event()
        news.set()
        return self._failure is None


class LivePages:
    """All pages that somebody looks at."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._drawings: dict[View, Drawing] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def events(self, view: View, draw: Draw, *, zipped: bool = False) -> AsyncIterator[bytes]:
        """The page, and again whenever it has changed. Raises before it begins if the page cannot be drawn."""
        with self._looking(view, draw) as drawing:
            drawn = await drawing.after(drawing.ask())
            yield (sse.ZIPPED_HEAD if zipped else b"") + drawn.event(zipped=zipped)
            while True:
                seen, following = drawn, asyncio.ensure_future(drawing.after(drawn.number + 1))
                try:
                    while not (await asyncio.wait([following], timeout=ALIVE_S))[0]:
                        yield _ALIVE[zipped]
                    drawn = await following
                except HeadgateError:
                    return  # Who asks again is told why.
                finally:
                    following.cancel()
                yield _ALIVE[zipped] if drawn.events is seen.events else drawn.event(zipped=zipped)

    @contextmanager
    def _looking(self, view: View, draw: Draw) -> Iterator[Drawing]:
        drawing = self._drawings.get(view)
        if drawing is None:
            drawing = self._drawings[view] = Drawing(draw)
            task = asyncio.create_task(self._draw_on(view, drawing), name="live page")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        drawing.lookers += 1
        try:
            yield drawing
        finally:
            drawing.lookers -= 1
            if not drawing.lookers:
                drawing.asked.set()  # It finds out that it is over.

    async def _draw_on(self, view: View, drawing: Drawing) -> None:
        """Until nobody looks, or it cannot be drawn: then who asks again begins a new one."""
        while drawing.lookers:
            began_s, worked_s = boot_s(), time.thread_time()
            if not await drawing.once():
                break
            took_s, worked_s = boot_s() - began_s, time.thread_time() - worked_s
            share_s = min(SHARE * worked_s * len(self._drawings), MOST_PAUSE_S)
            try:
                async with asyncio.timeout(max(self._every_s - took_s, share_s)):
                    await drawing.asked.wait()
            except TimeoutError:
                continue
        del self._drawings[view]


def _event(page: Response[str]) -> bytes:
    """What changes in a page. One that is not there any more is loaded as a whole."""
    if page.status_code != 200:
        return sse.event(msgspec.json.encode({"status": page.status_code}))
    main = page.content.partition(MAIN[0])[2].rpartition(MAIN[1])[0]
    return sse.event(msgspec.json.encode({"status": 200, "main": main}))
