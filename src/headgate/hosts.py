"""Sessions with the servers of a URL that names several: all are asked, and the newest that takes writes is used.

`core.hosts` decides; this module asks. It knows no driver: it is handed what opens a session, so that the registry and
the connectors, which may not know each other, share it.

`Newest` is what a process has seen of the timelines behind a URL; it outlives sessions and pools. Sessions join it: as
soon as a newer timeline is seen, all that talk to an older one are ended, in the threads and loops in which they live.
A session that hangs at a server that was cut off is freed in this way, too. Another URL is another matter: a copy of a
server, which some other datasource may use, has the same system identifier.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from traceback import clear_frames
from typing import Any, Generic, Protocol, TypeVar

from headgate.core.hosts import (
    Answer,
    Away,
    Decision,
    Denied,
    Host,
    NoneFits,
    ReadOnly,
    Said,
    Standby,
    UseHost,
    WaitFor,
    Writable,
    decide,
    hosts_of,
)
from headgate.errors import HeadgateError
from headgate.text import one_line

# The first question is all that a server needs to be asked that is what it was: one round trip, and one row if so. No
# privilege is needed for either.
_KNOWN = """
SELECT FROM pg_control_system() WHERE system_identifier = {system} AND current_setting('transaction_read_only') = 'off'
AND CASE WHEN pg_is_in_recovery() THEN false ELSE pg_walfile_name(pg_current_wal_lsn()) LIKE '{timeline:08X}%' END
"""
_WHO = """
SELECT system_identifier AS system, current_setting('transaction_read_only') = 'on' AS is_read_only,
       CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS timeline
FROM pg_control_system()
"""
# Of a server that is like PostgreSQL and has no such functions, or that does not let us use them.
_PLAIN = """
SELECT 0::bigint AS system, current_setting('transaction_read_only') = 'on' AS is_read_only,
       CASE WHEN NOT pg_is_in_recovery() THEN '0' END AS timeline
"""
ANSWER_S = 5.0  # For a server that has accepted the connection to say what it is.
LOOK_S = 30.0  # How often those that are not in use are asked when a session is opened.

_SILENT = ("42883", "42501", "0A000")  # No such function, no right to use it, not supported.
_DENIED = ("28", "3D")  # Classes of codes: who we say we are, and which database we want.


class Session(Protocol):
    """What is used here of a driver's session."""

    async def execute(self, query: str, /) -> str:
        """The status of the last of these statements."""

    async def fetchrow(self, query: str, /) -> Any:
        """The first row."""

    def terminate(self) -> None:
        """Close the socket at once."""


S = TypeVar("S", bound=Session)


class NoHost(ConnectionError):
    """No host of the URL can be used now. The text has a line for each, and nothing of the URL but their names."""


class Newest:
    """The highest timeline that was seen of each system, and the sessions that talk to one. Any thread may use it."""

    def __init__(self) -> None:
        self._timelines: dict[int, int] = {}
        self._sessions: weakref.WeakKeyDictionary[Session, tuple[asyncio.AbstractEventLoop, Writable]]
        self._sessions = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def seen(self) -> dict[int, int]:
        """By system identifier."""
        return dict(self._timelines)

    def note(self, system: int, timeline: int) -> None:
        """This was seen. Sessions with an older timeline of the system are ended."""
        with self._lock:
            if not system or timeline <= self._timelines.get(system, 0):
                return
            self._timelines[system] = timeline
            older = [
                (session, loop)
                for session, (loop, told) in self._sessions.items()
                if told.system == system and told.timeline < timeline
            ]
        for session, loop in older:
            with suppress(RuntimeError):  # Its loop has been closed, and it with it.
                loop.call_soon_threadsafe(_end, session)

    def join(self, session: Session, told: Writable, seen: Mapping[int, int]) -> None:
        """End this session when a newer timeline is seen than had been when its server was chosen."""
        with self._lock:
            self._sessions[session] = asyncio.get_running_loop(), told
            is_late = self._timelines.get(told.system) != seen.get(told.system)
        if is_late:
            _end(session)


class Hosts(Generic[S]):
    """The servers of one URL, as this process knows them. Any thread may use it."""

    def __init__(
        self,
        url: str,
        driver: tuple[type[Exception], ...],
        *,
        only_reads: bool = False,
        refuses_older: bool = True,
    ) -> None:
        """`driver`: what the driver raises if a server cannot be had. `only_reads`: sessions are read-only by our own
        wish, so that says nothing of the server. ValueError if the URL names no hosts that go together."""
        self.hosts = hosts_of(url)
        self._newest = Newest()
        self._driver = driver
        self._refuses_older = refuses_older
        self._only_reads = only_reads
        self._last: int | None = None  # The host that was used last.
        self._known: Writable | None = None  # What it said.
        self._looked_at_s = float("-inf")  # When all were asked.
        self._late: set[asyncio.Task[Any]] = set()

    @property
    def are_several(self) -> bool:
        """Whether there is a choice."""
        return len(self.hosts) > 1

    # Connecting.

    async def connect(self, open: Callable[[str], Awaitable[S]], within_s: float) -> S:
        """A session with the right one. With a single host this adds nothing."""
        if not self.are_several:
            return await _opened(open, self.hosts[0].url)
        loop = asyncio.get_running_loop()
        began_s, last = loop.time(), self._last
        said: list[Said | None] = [None] * len(self.hosts)
        asked: dict[int, asyncio.Task[tuple[S, Answer]]] = {}
        errors: dict[int, Exception] = {}
        try:
            while True:
                waited_s = loop.time() - began_s
                seen = self._newest.seen()
                match self._decided(said, seen, waited_s, within_s, last):
                    case UseHost(index):
                        session, answer = asked.pop(index).result()
                        assert isinstance(answer, Writable)
                        self._last, self._known = index, answer
                        self._newest.join(session, answer, seen)
                        self._hear_out(asked)
                        self._look_at_times(open, loop.time(), index == last)
                        return session
                    case NoneFits(lines, are_all_denied):
                        if are_all_denied:
                            raise errors[min(errors)]
                        raise NoHost(" · ".join(lines))
                    case WaitFor(until_s, everyone):
                        for index in range(len(self.hosts)) if everyone or last is None else [last]:
                            if index not in asked:
                                asked[index] = asyncio.create_task(self._ask(self.hosts[index], open))
                        waiting = [task for index, task in asked.items() if said[index] is None]
                        await asyncio.wait(
                            waiting, timeout=max(0.0, until_s - waited_s), return_when=asyncio.FIRST_COMPLETED
                        )
                        for index, task in asked.items():
                            if said[index] is None and task.done():
                                said[index] = Said(loop.time() - began_s, self._answer_of(task, index, errors))
        finally:
            for task in asked.values():
                _drop(task)

    async def look(self, open: Callable[[str], Awaitable[S]], *, everyone: bool = False) -> dict[Host, Answer]:
        """Ask those that are not in use, or everyone: a newer timeline is noticed although the older one answers."""
        asked = [index for index in range(len(self.hosts)) if everyone or index != self._last]
        tasks = [asyncio.create_task(self._ask(self.hosts[index], open)) for index in asked]
        try:
            await asyncio.wait(tasks)
            return {
                self.hosts[index]: self._answer_of(task, index, {}) for index, task in zip(asked, tasks, strict=True)
            }
        finally:
            for task in tasks:
                _drop(task)

    async def _as_known(self, session: Session) -> Writable | None:
        """What the server said before, if it would say so again."""
        if (known := self._known) is None or not known.system:
            return None
        try:
            status = await session.execute(known_as(known))
        except Exception as error:
            if _code_of(error) not in _SILENT:
                raise
            return None
        return known if status == "SELECT 1" else None

    async def _ask(self, host: Host, open: Callable[[str], Awaitable[S]]) -> tuple[S, Answer]:
        session = await _opened(open, host.url)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._as_known(session) or await who(session, only_reads=self._only_reads)
        except BaseException:
            session.terminate()
            raise
        if isinstance(answer, Writable):
            self._newest.note(answer.system, answer.timeline)
        return session, answer

    def _decided(
        self,
        said: Sequence[Said | None],
        seen: Mapping[int, int],
        waited_s: float,
        within_s: float,
        last: int | None,
    ) -> Decision:
        is_strict = self._refuses_older
        return decide(self.hosts, said, seen, waited_s=waited_s, within_s=within_s, last=last, refuses_older=is_strict)

    def _answer_of(self, task: asyncio.Task[tuple[S, Answer]], index: int, errors: dict[int, Exception]) -> Answer:
        """What came of asking. An error of another kind, such as that a URL is none, is raised."""
        try:
            return task.result()[1]
        except OSError as error:
            return Away(_reason(error))
        except HeadgateError as error:  # The guard's.
            errors[index] = error
            return Denied(error.message)
        except self._driver as error:
            if isinstance(error, ValueError):  # Its text may hold a piece of the password.
                raise
            if not (_code_of(error) or "").startswith(_DENIED):
                return Away(one_line(error))
            errors[index] = error
            return Denied(one_line(error))

    def _hear_out(self, asked: dict[int, asyncio.Task[tuple[S, Answer]]]) -> None:
        """Let those who have not answered do so: what they say is noted."""
        for index in [index for index, task in asked.items() if not task.done()]:
            late = asked.pop(index)
            self._keep(late)
            late.add_done_callback(_drop)

    def _look_at_times(self, open: Callable[[str], Awaitable[S]], now_s: float, is_alone: bool) -> None:
        """If only the last one was asked, others may have been promoted since. Nobody waits for what they say."""
        if is_alone and now_s > self._looked_at_s + LOOK_S:
            self._keep(asyncio.create_task(self.look(open)))
        if not is_alone or now_s > self._looked_at_s + LOOK_S:
            self._looked_at_s = now_s

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._late.add(task)
        task.add_done_callback(self._late.discard)


async def _opened(open: Callable[[str], Awaitable[S]], url: str) -> S:
    """A session. What the driver used for one that failed is free at once.

    Its frames keep their error, which keeps its frames, and with them a TLS context of many kilobytes, of which the
    collector knows nothing: a node whose database was away for a minute held hundreds.
    """
    try:
        return await open(url)
    except BaseException as error:
        seen: set[int] = set()
        one: BaseException | None = error
        while one is not None and id(one) not in seen:
            seen.add(id(one))
            clear_frames(one.__traceback__)
            one = one.__context__
        raise


def known_as(told: Writable) -> str:
    """A query with one row, if the server is what it has said before."""
    return _KNOWN.format(system=told.system, timeline=told.timeline)


async def who(session: Session, *, only_reads: bool = False) -> Answer:
    """What the server of this session is."""
    try:
        row = await _row(session, _WHO)
    except Exception as error:
        if _code_of(error) not in _SILENT:
            raise
        await session.execute("ROLLBACK")
        row = await _row(session, _PLAIN)
    if row["timeline"] is None:
        return Standby()
    if row["is_read_only"] and not only_reads:
        return ReadOnly()
    return Writable(row["system"], int(row["timeline"], 16))


async def _row(session: Session, query: str) -> Mapping[str, Any]:
    """In a transaction: behind a pooler each statement may be asked of another server."""
    await session.execute("BEGIN")
    row: Mapping[str, Any] = await session.fetchrow(query)
    await session.execute("COMMIT")
    return row


def _reason(error: OSError) -> str:
    """In a word. The text of an error of the network names addresses, which the host's name does already."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error) or "Connect call failed" in str(error):
        return "refused"
    return one_line(error.strerror or error, 200)


def _code_of(error: BaseException) -> str | None:
    """The server's code of an error; None if it is not the server's."""
    return getattr(error, "sqlstate", None)


def _drop(task: asyncio.Task[tuple[S, Answer]]) -> None:
    """End a question whose answer nobody needs, and the session that it may have got."""
    if not task.done():
        task.cancel()
        task.add_done_callback(_drop)
    elif not task.cancelled() and task.exception() is None:
        _end(task.result()[0])


def _end(session: Session) -> None:
    with suppress(Exception):  # It has ended by itself.
        session.terminate()
