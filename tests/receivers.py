"""Where notifications go in tests: a real SMTP server and a real receiver of webhooks, each in a thread."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast


@dataclass
class MailServer:
    """Takes e-mail, as it is told to."""

    context: ssl.SSLContext | None = None  # None: it speaks no TLS.
    is_tls: bool = False  # From the beginning.
    ways: str = "PLAIN LOGIN"
    login: tuple[str, str] | None = None  # Who may send; None: anybody.
    injects: bytes = b""  # Said right behind the answer to STARTTLS, in the clear.
    greeting: bytes = b"220 mail.test\r\n"
    port: int = 0
    commands: list[str] = field(default_factory=list)  # All that it heard, without what was encoded.
    envelopes: list[tuple[str, list[str]]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)  # The messages, without the dots of the protocol.

    @property
    def messages(self) -> list[EmailMessage]:
        """What arrived."""
        return [cast(EmailMessage, message_from_bytes(one, policy=policy.default)) for one in self.raw]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One conversation."""
        is_secret, is_known, sender, recipients = self.is_tls, self.login is None, "", list[str]()

        async def answer(text: str) -> None:
            writer.write(text.encode() + b"\r\n")
            await writer.drain()

        async def line() -> str:
            return (await reader.readline()).decode().rstrip("\r\n")

        writer.write(self.greeting)
        while text := await line():
            word = text.split(" ")[0].upper()
            self.commands.append("AUTH" if word == "AUTH" else text)
            match word:
                case "EHLO":
                    offers = ["STARTTLS"] if self.context and not is_secret else []
                    offers += [f"AUTH {self.ways}"] if self.login else []
                    await answer("".join(f"250-{one}\r\n" for one in ["mail.test", *offers]) + "250 SIZE 100000")
                case "STARTTLS":
                    assert self.context is not None
                    writer.write(b"220 go on\r\n" + self.injects)
                    await writer.start_tls(self.context)
                    is_secret = True
                case "AUTH":
                    given = await self._given(text, answer, line)
                    is_known = given == self.login
                    await answer("235 welcome" if is_known else "535 who are you")
                case "MAIL" if not is_known:
                    await answer("530 authenticate first")
                case "MAIL":
                    sender = text[len("MAIL FROM:<") : -1]
                    await answer("250 fine")
                case "RCPT":
                    recipients.append(text[len("RCPT TO:<") : -1])
                    await answer("250 fine")
                case "DATA":
                    await answer("354 go on")
                    self.raw.append(await self._data(reader))
                    self.envelopes.append((sender, recipients))
                    await answer("250 taken")
                case "QUIT":
                    await answer("221 bye")
                    break
                case _:
                    await answer("502 what")
        writer.close()

    async def _given(self, text: str, answer: Callable[[str], Any], line: Callable[[], Any]) -> tuple[str, str]:
        if " PLAIN " in text:
            _, user, password = base64.b64decode(text.split(" ")[2]).decode().split("\0")
            return user, password
        await answer("334 VXNlcm5hbWU6")
        user = base64.b64decode(await line()).decode()
        await answer("334 UGFzc3dvcmQ6")
        return user, base64.b64decode(await line()).decode()

    async def _data(self, reader: asyncio.StreamReader) -> bytes:
        lines = []
        while (one := await reader.readline()) != b".\r\n":
            lines.append(one[1:] if one.startswith(b".") else one)
        return b"".join(lines)


@contextmanager
def mail_server(server: MailServer) -> Iterator[MailServer]:
    """It listens, for the time of a block."""
    is_ready = threading.Event()
    end: list[Callable[[], Any]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await server.serve(reader, writer)
        except OSError:
            pass  # The other side has gone.
        finally:
            writer.close()

    async def listen() -> None:
        is_over, loop = asyncio.Event(), asyncio.get_running_loop()
        end.append(partial(loop.call_soon_threadsafe, is_over.set))
        context = server.context if server.is_tls else None
        listening = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context)
        server.port = listening.sockets[0].getsockname()[1]
        is_ready.set()
        await is_over.wait()
        listening.close()

    thread = threading.Thread(target=lambda: asyncio.run(listen()), daemon=True)
    thread.start()
    is_ready.wait()
    try:
        yield server
    finally:
        end[0]()
        thread.join()


@dataclass
class Receiver:
    """Takes what is posted, unless it is told to answer otherwise."""

    status: int = 200
    location: str = ""
    url: str = ""
    calls: list[tuple[dict[str, str], bytes]] = field(default_factory=list)  # Headers in lower case, and bodies.
    refused: int = 0

    def bodies(self, **like: Any) -> list[dict[str, Any]]:
        """The JSON of what was taken that has these fields."""
        found = [json.loads(body) for _, body in list(self.calls)]
        return [one for one in found if all(one.get(key) == value for key, value in like.items())]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """It listens, for the time of a block."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if found.status < 300:
                found.calls.append(({key.lower(): value for key, value in self.headers.items()}, body))
            else:
                found.refused += 1
            self.send_response(found.status)
            if found.location:
                self.send_header("Location", found.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/told"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
