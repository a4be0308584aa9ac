"""One connection to a broker: bytes come in and are cut into frames, requests wait for their answers, and all who wait
are told when it ends.

A protocol derives from `Wire` and says in `take` what a frame is. It works inside the event loop's callbacks, without a
task or a thread. A protocol that holds too much stops the reading (`hold`), and TCP then stops the peer. A peer that is
silent for two intervals of its heartbeat is gone.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, TypeVar, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from headgate.connectors.guard import Guard
from headgate.connectors.tls import context_of, untrusted
from headgate.errors import ConnectorError, HeadgateError, NotConnected
from headgate.text import one_line

CONNECT_S = 10.0  # For a connection to be made, and greeted by the other side.
CLOSE_S = 2.0  # For a good end. After that it is cut.

T = TypeVar("T", bound="Wire")


@dataclass(frozen=True, slots=True)
class Address:
    """What the URL of a broker says."""

    hosts: tuple[tuple[str, int], ...]
    user: str | None
    password: str | None = field(repr=False)
    path: str = ""  # Without its first slash, decoded.
    has_tls: bool = False
    query: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For messages: the hosts, and nothing else."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    @classmethod
    def of(cls, url: str, ports: dict[str, int], known: tuple[str, ...] = ()) -> Self:
        """Read a URL. `ports` are the schemes that are understood, with their usual ports; one that ends with `s` or
        `+tls` has TLS. `known` are the parameters besides those of TLS. Raises `ValueError`, without the URL."""
        parts = urlsplit(url)
        if parts.scheme not in ports:
            raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in ports)}")
        if parts.fragment:
            raise ValueError("is not a URL; write / # ? @ : in a password as %2F %23 %3F %40 %3A")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(set(query) - {*_TLS, *known}):
            raise ValueError(f"has a parameter that is not known: {unknown[0][:80]}")
        user, colon, password = parts.netloc.rpartition("@")[0].partition(":")
        hosts = tuple(_host(one, ports[parts.scheme]) for one in parts.netloc.rpartition("@")[2].split(","))
        return cls(
            hosts,
            unquote(user) if user else None,
            unquote(password) if colon else None,
            unquote(parts.path.removeprefix("/")),
            parts.scheme.endswith("s") or parts.scheme.endswith("+tls"),
            query,
        )


_FILES = ("cacertfile", "certfile", "keyfile")
_TLS = (*_FILES, "server_name_indication")


def _host(text: str, usual: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("names no host")
    return parts.hostname, parts.port or usual


def _itself(wire: T) -> T:
    return wire


async def connect(address: Address, guard: Guard, make: Callable[[], T]) -> T:
    """A connection to the first host that answers; greeted, if it is."""
    files = address.query.items()
    context = context_of(files, guard, address.name, _FILES) if address.has_tls else None
    loop = guard.loop() or asyncio.get_running_loop()
    last: ConnectorError | None = None
    for host, port in address.hosts:
        more: dict[str, Any] = {"ssl": context} if context else {}
        if context:
            more["server_hostname"] = address.query.get("server_name_indication", host)
        wire = make()
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(partial(_itself, wire), host, port, **more)
                await wire.greet()
            return wire
        except ssl.SSLCertVerificationError as error:
            last = untrusted(error, f"{host}:{port}", _FILES)
        except TimeoutError:
            last = NotConnected(f"{host}:{port} does not answer")
        except OSError as error:
            last = NotConnected(f"{host}:{port}: {one_line(error)}")
        except NotConnected as error:
            last = error
        finally:
            if not wire.is_ready:
                wire.cut()
    assert last is not None, "there is at least one host"
    raise last


class Wire(asyncio.Protocol):
    """One connection. Derive from it."""

    heartbeat_s: float = 0.0  # Agreed with the peer; 0: none.

    def __init__(self, name: str) -> None:
        self.name = name  # Of the peer, for messages.
        self.is_ready = False  # Greeted.
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._error: HeadgateError | None = None  # Why it has ended, or is about to.
        self._waiting: dict[Hashable, asyncio.Future[Any]] = {}
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._writable = asyncio.Event()
        self._arrived = asyncio.Event()  # Something that `wait_for_more` waits for.
        self._pieces: list[bytes] = []
        self._have, self._need = 0, 0
        self._heard_s = self._loop.time()
        self._sent_s = self._heard_s
        self._is_held = False
        self._timer: asyncio.TimerHandle | None = None

    # What a protocol says.

    @abstractmethod
    async def greet(self) -> None:
        """Agree with the peer on everything. Set `is_ready`."""

    @abstractmethod
    def take(self, data: bytes) -> tuple[int, int]:
        """Handle all frames that are whole. Return how many bytes they had, and how many the next one needs."""

    @abstractmethod
    def beat(self) -> bytes:
        """What is sent while there is nothing else to send."""

    def farewell(self) -> bytes:
        """What is sent before the end."""
        return b""

    # Waiting.

    def check_alive(self) -> None:
        """Raise why it has ended, if it has."""
        if self._error is not None:
            raise self._error

    async def answer(self, key: Hashable) -> Any:
        """What `give` gives for this key."""
        self.check_alive()
        future = self._waiting[key] = self._loop.create_future()
        try:
            return await future
        finally:
            self._waiting.pop(key, None)

    def give(self, key: Hashable, value: Any = None) -> bool:
        """An answer has come. False: nobody waits for it."""
        future = self._waiting.get(key)
        if future is None or future.done():
            return False
        future.set_result(value)
        return True

    async def wait_for_more(self) -> None:
        """Until `arrive` is called, or raise why it never will be."""
        self.check_alive()
        self._arrived.clear()
        await self._arrived.wait()

    def arrive(self) -> None:
        """Wake who waits for more."""
        self._arrived.set()

    def fail(self, error: HeadgateError) -> None:
        """Everybody who waits, now or later, gets this error. The first one counts."""
        if self._error is None:
            self._error = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._error)
                future.exception()  # The one who waited may be gone.
        self._arrived.set()
        self._writable.set()

    # Sending.

    def send(self, data: bytes) -> None:
        """Now, or as soon as the peer takes it."""
        if self._transport is not None and not self._transport.is_closing():
            self._sent_s = self._loop.time()
            self._transport.write(data)

    async def drain(self) -> None:
        """Until the peer has taken most of what was sent."""
        self.check_alive()
        await self._writable.wait()
        self.check_alive()

    # Holding.

    def hold(self, is_held: bool) -> None:
        """Read nothing more, or read again."""
        if is_held != self._is_held and self._transport is not None and not self._transport.is_closing():
            self._is_held = is_held
            (self._transport.pause_reading if is_held else self._transport.resume_reading)()
            self._heard_s = self._loop.time()

    # Ending.

    async def close(self) -> None:
        """Say goodbye, if it is alive, and end. May be called twice."""
        if self._transport is None:
            return
        try:
            if self._error is None and self.is_ready:
                self.hold(False)
                self.send(self.farewell())
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._gone), CLOSE_S)
        finally:
            self.cut()

    def cut(self) -> None:
        """End it at once."""
        self.fail(NotConnected(f"{self.name}: the connection was closed"))
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Cut it into frames. Pieces of a large one are joined once, when it is whole."""
        self._heard_s = self._loop.time()
        if self._have:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._pieces)
        try:
            used, self._need = self.take(data)
        except HeadgateError as error:
            self.fail(error)
            self.cut()
            return
        except Exception as error:  # A peer that is none of its kind, or a bug; nothing else must suffer.
            self.fail(NotConnected(f"{self.name} sent what is not understood ({type(error).__name__})"))
            self.cut()
            return
        self._have = len(data) - used
        self._pieces = [data[used:]] if self._have else []

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
        why = f": {one_line(exc)}" if exc is not None else ""
        self.fail(NotConnected(f"{self.name} closed the connection{why}"))
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        """The peer does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._writable.set()

    # Heartbeats.

    def begin_beats(self, interval_s: float) -> None:
        """Beat when nothing was sent for half an interval, and listen for the other's beats."""
        self.heartbeat_s = interval_s
        if interval_s > 0:
            self._timer = self._loop.call_later(interval_s / 4, self._look)

    def _look(self) -> None:
        now_s = self._loop.time()
        if now_s - self._sent_s >= self.heartbeat_s / 2:
            self.send(self.beat())
        if not self._is_held and now_s - self._heard_s > 2 * self.heartbeat_s:
            self.fail(NotConnected(f"{self.name} has been silent for {2 * self.heartbeat_s:.0f} s"))
            self.cut()
            return
        self._timer = self._loop.call_later(self.heartbeat_s / 4, self._look)
