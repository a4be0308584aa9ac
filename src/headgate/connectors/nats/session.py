"""A connection to NATS that is made when it is needed, and questions to JetStream.

Answers go to inboxes under one subject of this connection. A question that is cancelled forgets its inbox; what comes
later is dropped. Whatever else goes wrong takes the connection along, and the next question makes another.
"""

from __future__ import annotations

import asyncio
import difflib
import itertools
import secrets
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from pydantic import SecretStr

from headgate.connectors.guard import Guard
from headgate.connectors.nats.address import Address, addresses_of
from headgate.connectors.nats.nkeys import Credentials
from headgate.connectors.nats.wire import Denied, Message, Wire, status_of
from headgate.connectors.tls import context_of, untrusted
from headgate.errors import Cause, ConnectorError, HeadgateError, NotConnected
from headgate.text import one_line

CONNECT_S = 10.0
ANSWER_S = 10.0
NO_RESPONDERS = 503
STREAM_NOT_FOUND = 10059


class Answer(ConnectorError):
    """JetStream says no."""

    def __init__(self, server: str, error: dict[str, Any]) -> None:
        self.number = int(error.get("err_code", 0))
        self.status = int(error.get("code", 0))
        text = one_line(str(error.get("description", "")), 200)
        cause = Cause.NETWORK if self.status == NO_RESPONDERS else Cause.CONFIG
        super().__init__(f"{server}: {text} ({self.number})", cause=cause)


class Session:
    """One connection, to any of the servers."""

    def __init__(self, url: SecretStr, credentials: SecretStr | None, guard: Guard) -> None:
        self._addresses = addresses_of(url.get_secret_value())
        self._credentials = Credentials(credentials.get_secret_value()) if credentials is not None else None
        self._guard = guard
        self._wire: Wire | None = None
        self._inbox = b""
        self._numbers = itertools.count()
        self._connecting = asyncio.Lock()

    @property
    def name(self) -> str:
        """For people."""
        return self._addresses[0].name

    @property
    def info(self) -> dict[str, Any]:
        """What the server says of itself."""
        return self._wire.info if self._wire is not None else {}

    async def ask(self, question: str, content: Any = None) -> dict[str, Any]:
        """JetStream's answer to `STREAM.INFO.ORDERS`. One that is an error is raised."""
        body = b"" if content is None else msgspec.json.encode(content)
        message = await self.request(f"$JS.API.{question}".encode(), body)
        if status_of(message.headers)[0] == NO_RESPONDERS:
            raise NotConnected(f"{self.name}: JetStream does not answer")
        answer: dict[str, Any] = msgspec.json.decode(message.body)
        if "error" in answer:
            raise Answer(self.name, answer["error"])
        return answer

    async def request(self, subject: bytes, body: bytes) -> Message:
        """The answer to a message."""
        async with self.waiting() as (wire, waiting):
            inbox = self.new_inbox()

            def come(message: Message) -> None:
                if not waiting.done():
                    waiting.set_result(message)

            wire.listen(inbox, come)
            try:
                wire.send(b"PUB %b %b %d\r\n%b\r\n" % (subject, inbox, len(body), body))
                async with asyncio.timeout(ANSWER_S):
                    message: Message = await waiting
                    return message
            finally:
                wire.forget(inbox)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[tuple[Wire, asyncio.Future[Any]]]:
        """The connection, and something to wait for that fails with it. Errors come out in our words."""
        with_wire: Wire | None = None
        waiting: asyncio.Future[Any] | None = None
        try:
            with_wire = await self.connected()
            waiting = with_wire.expect()
            yield with_wire, waiting
        except TimeoutError:
            self.drop(with_wire)
            raise NotConnected(f"{self.name} has not answered for {ANSWER_S:.0f} s") from None
        except Denied as error:
            self.drop(with_wire)
            raise self._denied(error) from None
        except OSError as error:
            self.drop(with_wire)
            raise NotConnected(f"{self.name}: {one_line(str(error) or type(error).__name__, 200)}") from None
        finally:
            if with_wire is not None and waiting is not None:
                with_wire.drop(waiting)

    def _denied(self, error: Denied) -> ConnectorError:
        return ConnectorError(f"{self.name}: {error}", cause=Cause.AUTH)

    def new_inbox(self) -> bytes:
        """An inbox that nobody else has."""
        return b"%b%d" % (self._inbox, next(self._numbers))

    @property
    def is_connected(self) -> bool:
        """Whether a question would find a connection."""
        return self._wire is not None and self._wire.gone is None

    def drop(self, wire: Wire | None = None) -> None:
        """End the connection, or this one if it still is ours; the next question makes another."""
        if wire is None or wire is self._wire:
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()

    async def close(self) -> None:
        """End the connection, and give the loop a turn to let go of its socket."""
        self.drop()
        await asyncio.sleep(0)

    # Connecting.

    async def connected(self) -> Wire:
        """The connection. Who asks while it is made waits for the same one."""
        async with self._connecting:
            if self._wire is None or self._wire.gone is not None:
                self.drop()
                self._wire = await self._connect()
                inbox = f"_INBOX.{secrets.token_hex(11)}.".encode()
                self._wire.send(b"SUB %b* 1\r\n" % inbox)
                self._inbox = inbox
            return self._wire

    async def _connect(self) -> Wire:
        last: Exception | None = None
        for number, address in enumerate(self._addresses):
            try:
                async with asyncio.timeout(CONNECT_S):
                    wire = await self._connect_to(address)
                if number:  # The one that answers comes first, next time.
                    self._addresses = [address, *(one for one in self._addresses if one != address)]
                return wire
            except (OSError, TimeoutError) as error:
                last = error
        if isinstance(last, TimeoutError):
            raise NotConnected(f"{self.name} has not answered for {CONNECT_S:.0f} s") from None
        raise last or OSError("there is no address")

    async def _connect_to(self, address: Address) -> Wire:
        loop = asyncio.get_running_loop()
        last: OSError | None = None
        for number in await self._guard.resolve(address.host, address.port):
            try:
                _, wire = await loop.create_connection(Wire, number, address.port)
            except OSError as error:
                last = error
                continue
            try:
                await self._greet(wire, address)
            except BaseException:
                wire.abort()
                raise
            return wire
        raise last or OSError("there is no address")

    async def _greet(self, wire: Wire, address: Address) -> None:
        await wire.informed()
        if address.is_tls or wire.info.get("tls_required"):
            context = context_of(address.files, self._guard, address.name)
            loop = asyncio.get_running_loop()
            try:
                made = await loop.start_tls(wire.transport, wire, context, server_hostname=address.host)
            except ssl.SSLCertVerificationError as error:
                raise untrusted(error, address.name) from None
            if made is None:
                raise ConnectionResetError("the server has closed the connection")
            wire.replace_transport(made)
        signed = self._credentials.answer(wire.info.get("nonce", "")) if self._credentials is not None else {}
        hello = {
            "verbose": False, "pedantic": False, "lang": "python", "version": "1", "name": "headgate", "protocol": 1,
            "headers": True, "no_responders": True, **address.credentials, **signed,
        }  # fmt: skip
        wire.send(b"CONNECT %b\r\n" % msgspec.json.encode(hello))
        await wire.ping()


async def probe(url: SecretStr, credentials: SecretStr | None, guard: Guard) -> None:
    """Return if a server answers, and its JetStream."""
    session = Session(url, credentials, guard)
    try:
        await session.ask("INFO")
    except HeadgateError as error:
        if not isinstance(error, Answer):
            raise
    finally:
        await session.close()


async def stream_info(session: Session, stream: str) -> dict[str, Any]:
    """What the server says of a stream. One that is not there is named with others that are like it."""
    try:
        return await session.ask(f"STREAM.INFO.{stream}")
    except Answer as error:
        if error.number != STREAM_NOT_FOUND:
            raise
    names = (await session.ask("STREAM.NAMES")).get("streams") or []
    near = difflib.get_close_matches(stream, names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "make the stream first"
    raise ConnectorError(f"{session.name} has no stream {stream!r}", cause=Cause.CONFIG, hint=hint)


def matches(subject: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a stream that takes `pattern` takes all of `subject`, whose last part may be `>`."""
    for number, part in enumerate(pattern):
        if part == ">":
            return number < len(subject)
        if number >= len(subject) or subject[number] == ">" or (part not in ("*", subject[number])):
            return False
    return len(pattern) == len(subject)
