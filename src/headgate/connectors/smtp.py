"""E-mail by SMTP, to one server: what is sent is accepted by it, or an error says why not.

It is a client of our own because of what must hold: the connection goes to an address that the guard has judged, under
the name that the certificate must be for; no password goes over a connection in the clear; nothing that came before the
TLS handshake is taken for what was said after it; and a server that talks without end costs a little memory and a few
seconds.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from headgate.connectors.guard import Guard
from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.text import one_line

Tls: TypeAlias = Literal["starttls", "tls", "none"]
PORTS: dict[Tls, int] = {"starttls": 587, "tls": 465, "none": 25}
MOST_BYTES = 64 * 1024  # Of answers that nobody has read yet, and of one answer.


@dataclass(frozen=True, slots=True)
class Server:
    """Which server, and who we are there."""

    host: str
    port: int
    tls: Tls
    user: str | None = None
    password: str | None = None
    ca_file: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """From whom, to whom, and the message as it is sent: with CRLF at the ends of lines."""

    sender: str
    recipients: Sequence[str]
    message: bytes


async def send(server: Server, envelope: Envelope, guard: Guard, timeout_s: float) -> None:
    """Hand a message over. Raises ConnectorError."""
    try:
        async with asyncio.timeout(timeout_s):
            await _send(server, envelope, guard)
    except TimeoutError:
        raise NotConnected(f"{server} has not taken the message within {timeout_s:.0f} s") from None
    except ssl.SSLCertVerificationError as error:
        why = f"{server} has a certificate that is not accepted: {error.verify_message}"
        hint = "name the authority that signed it as `ca_file`"
        raise ConnectorError(why, cause=Cause.CONFIG, hint=hint) from None
    except OSError as error:
        raise NotConnected(f"{server} is not reached: {error.strerror or one_line(error)}") from None


async def _send(server: Server, envelope: Envelope, guard: Guard) -> None:
    talk = _Talk(server)
    await talk.connect(guard, await asyncio.to_thread(_context, server, guard))  # Reading authorities takes a while.
    try:
        await talk.greet()
        if server.user is not None and server.password is not None:
            await talk.authenticate(server.user, server.password)
        await talk.say(f"MAIL FROM:<{envelope.sender}>", 250)
        for recipient in envelope.recipients:
            await talk.say(f"RCPT TO:<{recipient}>", 250, 251)
        await talk.say("DATA", 354)
        await talk.tell(_stuffed(envelope.message), "the message", 250)
        talk.write(b"QUIT\r\n")  # It has the message: what it answers does not matter.
    finally:
        talk.close()


def _context(server: Server, guard: Guard) -> ssl.SSLContext | None:
    if server.tls == "none":
        return None
    if server.ca_file is None:
        return ssl.create_default_context()
    try:
        with open(guard.open(server.ca_file), encoding="ascii") as file:
            return ssl.create_default_context(cadata=file.read() or "none")  # Empty, it would stand for the usual ones.
    except (ValueError, ssl.SSLError):
        raise ConnectorError(f"{server.ca_file} has no certificate", cause=Cause.CONFIG) from None


def _stuffed(message: bytes) -> bytes:
    """A line that begins with a dot gets another, and one that is a dot ends it."""
    body = message if message.endswith(b"\r\n") else message + b"\r\n"
    return (b"." if body.startswith(b".") else b"") + body.replace(b"\r\n.", b"\r\n..") + b".\r\n"


class _Talk(asyncio.Protocol):
    """One conversation: a command, then its answer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._heard = b""
        self._news = asyncio.Event()
        self._end: Exception | None = None
        self._context: ssl.SSLContext | None = None
        self._offers: dict[str, str] = {}

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open, in the clear or under TLS."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """More of an answer."""
        self._heard += data
        if len(self._heard) > MOST_BYTES:
            self._end = self._failed("it says more than anybody can have asked for")
            self.close()
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._end = self._end or exc or ConnectionResetError("the connection was closed")
        self._news.set()

    # Commands.

    async def connect(self, guard: Guard, context: ssl.SSLContext | None) -> None:
        """To one of the server's addresses."""
        server, loop = self._server, asyncio.get_running_loop()
        self._context = context
        tls = context if server.tls == "tls" else None
        last: OSError | None = None
        for address in await guard.resolve(server.host, server.port):
            try:
                name = server.host if tls else None
                await loop.create_connection(lambda: self, address, server.port, ssl=tls, server_hostname=name)
                await self._answer("the connection", 220)
                return
            except ssl.SSLError:
                raise
            except OSError as error:
                last, self._end, self._heard = error, None, b""
        raise last or OSError("the host has no address")

    async def greet(self) -> None:
        """Say who we are, and go on under TLS if that is wanted: without it nothing is said at all."""
        await self._hello()
        if self._server.tls != "starttls":
            return
        if "STARTTLS" not in self._offers:
            raise self._failed("it does not offer STARTTLS", "`tls: tls` if it speaks TLS from the beginning")
        await self.say("STARTTLS", 220)
        if self._heard:
            raise self._failed("it spoke before the handshake was over")
        assert self._transport is not None
        assert self._context is not None
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(self._transport, self, self._context, server_hostname=self._server.host)
        self._transport = cast(asyncio.Transport, secured)
        await self._hello()

    async def _hello(self) -> None:
        lines = await self.say("EHLO headgate", 250)
        offers = (line.partition(" ") for line in lines[1:])
        self._offers = {name.upper(): more.upper() for name, _, more in offers}

    async def authenticate(self, user: str, password: str) -> None:
        """By the way that the server knows."""
        ways = self._offers.get("AUTH", "").split()
        if "PLAIN" in ways:
            await self.tell(b"AUTH PLAIN " + _encoded(f"\0{user}\0{password}") + b"\r\n", "AUTH", 235)
        elif "LOGIN" in ways:
            await self.tell(b"AUTH LOGIN\r\n", "AUTH", 334)
            await self.tell(_encoded(user) + b"\r\n", "AUTH", 334)
            await self.tell(_encoded(password) + b"\r\n", "AUTH", 235)
        else:
            raise self._failed("it knows no way to authenticate that we know (PLAIN, LOGIN)")

    async def say(self, command: str, *expected: int) -> list[str]:
        """One command, which must be a line of ASCII."""
        if not command.isascii() or not command.isprintable():
            raise self._failed("an address has a sign that no command may have")
        return await self.tell(command.encode("ascii") + b"\r\n", command.partition(" ")[0], *expected)

    async def tell(self, data: bytes, what: str, *expected: int) -> list[str]:
        """Bytes, and the answer to them. `what` is all that an error says of it."""
        self.write(data)
        return await self._answer(what, *expected)

    def write(self, data: bytes) -> None:
        """Send this."""
        assert self._transport is not None
        self._transport.write(data)

    def close(self) -> None:
        """Say no more."""
        if self._transport is not None:
            self._transport.close()

    # Answers.

    async def _answer(self, what: str, *expected: int) -> list[str]:
        """The lines of an answer, without their numbers."""
        lines: list[str] = []
        size = 0
        while True:
            line = await self._line()
            size += len(line)
            if size > MOST_BYTES or not line[:3].isdigit():
                raise self._failed("what it says is not SMTP")
            lines.append(line[4:])
            if line[3:4] != "-":
                break
        if int(line[:3]) not in expected:
            raise self._failed(f"it refuses {what}: {one_line(line, 200)}")
        return lines

    async def _line(self) -> str:
        while b"\n" not in self._heard:
            if self._end is not None:
                raise self._end
            self._news.clear()
            await self._news.wait()
        line, _, self._heard = self._heard.partition(b"\n")
        return line.rstrip(b"\r").decode("ascii", "replace")

    def _failed(self, why: str, hint: str = "") -> ConnectorError:
        return ConnectorError(f"{self._server}: {why}", cause=Cause.CONFIG, hint=hint)


def _encoded(text: str) -> bytes:
    return base64.b64encode(text.encode())
