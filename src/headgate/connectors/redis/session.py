"""One connection to a Redis server: commands go out together, and their replies come back in order.

Replies are parsed by hiredis. The rest is ours for two reasons. A reply is read whole or not at all: what grows beyond
a limit is cut off with its connection (`TooMuch`), so the largest entry of a stream does not decide how much memory
this node needs. And a call that is cancelled, or that fails, takes its connection with it, so that no reply is ever
taken for that of another command. The next call connects again.

In a Redis Cluster a session follows its keys: all of one session are in one slot, and the node that does not have it
says who does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import hiredis

from headgate.connectors.guard import Guard
from headgate.connectors.redis.errors import Answered, steering
from headgate.connectors.tls import context_of, untrusted
from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.text import one_line

CONNECT_S = 10.0
ANSWER_S = 30.0  # For a command that does not wait.
REPLY_BYTES = 64 * 2**20  # Of an answer to anything but a read, which says itself what it takes.
MOST_MOVES = 3  # From node to node of a cluster, for one command.

Word: TypeAlias = str | bytes | int
Command: TypeAlias = Sequence[Word]


_packed: Callable[..., bytes] = hiredis.pack_command  # Its stub has tuples of one word.


class TooMuch(ConnectorError):
    """The reply is larger than the caller takes. Its connection is gone."""

    cause = Cause.CONFIG


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and as whom we speak to it."""

    host: str
    port: int
    user: str = ""
    password: str = ""
    database: int = 0
    is_tls: bool = False
    files: tuple[tuple[str, str], ...] = ()  # Of certificates: `ssl_ca_certs` and its path.

    @property
    def name(self) -> str:
        """For people."""
        return f"Redis at {self.host}:{self.port}"


def address_of(url: str) -> Address:
    """From redis://user:password@host:6379/0, whose form the options have checked."""
    parts = urlsplit(url)
    return Address(
        parts.hostname or "localhost",
        parts.port or 6379,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        int(parts.path.strip("/") or 0),
        parts.scheme == "rediss",
        tuple(parse_qsl(parts.query)),
    )


class _Wire(asyncio.Protocol):
    """Bytes in, replies out."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=self)
        self._waiting: asyncio.Future[list[Any]] | None = None
        self._replies: list[Any] = []
        self._wanted = 0
        self._left_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._gone: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # That of uvloop is no subclass.

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionResetError("the server has closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._end(TooMuch("the reply is larger than what is taken at once"))
            return
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not self:
                self._replies.append(reply)
        except (hiredis.ProtocolError, ValueError) as error:
            self._end(ConnectionError(f"this is not the protocol of Redis: {error}"))
            return
        if self._waiting is not None and len(self._replies) >= self._wanted and not self._waiting.done():
            self._waiting.set_result(self._replies)

    def _end(self, error: Exception) -> None:
        self._gone = self._gone or error
        self.abort()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    async def ask(self, commands: Sequence[Command], most_bytes: int) -> list[Any]:
        """Send commands, and wait for as many replies."""
        if self._gone is not None:
            raise self._gone
        assert self._transport is not None
        self._replies, self._wanted, self._left_bytes = [], len(commands), most_bytes
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            self._transport.writelines([_packed(tuple(command)) for command in commands])
            return await self._waiting
        finally:
            self._waiting = None

    def abort(self) -> None:
        """End the connection, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_gone(self) -> bool:
        return self._gone is not None


class Session:
    """A connection that is made when it is needed."""

    def __init__(self, address: Address, guard: Guard) -> None:
        self._address = address
        self._guard = guard
        self._wire: _Wire | None = None

    @property
    def name(self) -> str:
        """For people."""
        return self._address.name

    async def call(self, *command: Word, most_bytes: int = REPLY_BYTES, within_s: float = ANSWER_S) -> Any:
        """The reply to one command. What the server refuses is raised, in our words."""
        return (await self.calls([command], most_bytes=most_bytes, within_s=within_s))[0]

    async def calls(
        self, commands: Sequence[Command], *, most_bytes: int = REPLY_BYTES, within_s: float = ANSWER_S
    ) -> list[Any]:
        """The replies to several commands, which are sent together. The first that is refused is raised."""
        replies = await self.answers(commands, most_bytes=most_bytes, within_s=within_s)
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise steering(Answered.of(reply), self.name)
        return replies

    async def answers(
        self, commands: Sequence[Command], *, most_bytes: int = REPLY_BYTES, within_s: float = ANSWER_S
    ) -> list[Any]:
        """The same, where what is refused is among the replies. Only the way to another node is taken."""
        for _ in range(MOST_MOVES):
            replies = await self._asked(commands, most_bytes, within_s)
            moved = next((to for reply in replies if (to := _moved_to(reply)) is not None), None)
            if moved is None:
                return replies
            self.drop()
            host, port = moved
            self._address = replace(self._address, host=host or self._address.host, port=port)
        raise NotConnected(f"{self.name}: the cluster does not agree who has the slot")

    async def _asked(self, commands: Sequence[Command], most_bytes: int, within_s: float) -> list[Any]:
        """A connection that was idle may have been closed by the server, which is found out only when it is used: the
        caller hears of it as of any other loss."""
        try:
            if self._wire is None or self._wire.is_gone:
                self.drop()
                self._wire = await self._connected()
            async with asyncio.timeout(within_s):
                return await self._wire.ask(commands, most_bytes)
        except TimeoutError:
            self.drop()
            raise NotConnected(f"{self.name} has not answered for {within_s:.0f} s") from None
        except OSError as error:
            self.drop()
            raise NotConnected(f"{self.name}: {one_line(str(error) or type(error).__name__, 200)}") from None
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """End the connection; the next call makes another."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()

    async def close(self) -> None:
        """End the connection, and give the loop a turn to let go of its socket."""
        self.drop()
        await asyncio.sleep(0)

    # Connecting.

    async def _connected(self) -> _Wire:
        wire: _Wire | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                wire = await self._connection()
                await self._greet(wire)
                return wire
        except BaseException as error:
            if wire is not None:
                wire.abort()
            if isinstance(error, TimeoutError):
                raise NotConnected(f"{self.name} has not answered for {CONNECT_S:.0f} s") from None
            raise

    async def _connection(self) -> _Wire:
        address, loop = self._address, asyncio.get_running_loop()
        context = context_of(address.files, self._guard, self.name) if address.is_tls else None
        last: OSError | None = None
        for number in await self._guard.resolve(address.host, address.port):
            try:
                _, wire = await loop.create_connection(
                    _Wire,
                    number,
                    address.port,
                    ssl=context,
                    server_hostname=address.host if context is not None else None,
                )
            except ssl.SSLCertVerificationError as error:
                raise untrusted(error, self.name) from None
            except OSError as error:
                last = error
            else:
                return wire
        raise last or OSError("there is no address")

    async def _greet(self, wire: _Wire) -> None:
        address, commands = self._address, []
        if address.password:
            commands.append(("AUTH", *([address.user] if address.user else []), address.password))
        if address.database:
            commands.append(("SELECT", str(address.database)))
        for reply in await wire.ask([*commands, ("PING",)], REPLY_BYTES):
            if isinstance(reply, hiredis.ReplyError):
                raise steering(Answered.of(reply), self.name)


def _moved_to(reply: Any) -> tuple[str, int] | None:
    """The node that has the slot, if this reply says that another one has it. It may be one of those of an EXEC."""
    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("MOVED "):
        host, _, port = str(reply).split()[2].rpartition(":")
        with suppress(ValueError):
            return host, int(port)
    return None


async def probe(url: str, guard: Guard) -> None:
    """Return if the server answers. One that is still loading does not."""
    session = Session(address_of(url), guard)
    try:
        await session.call("PING")
    finally:
        await session.close()
