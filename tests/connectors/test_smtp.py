"""E-mail, against a real server that behaves, and against some that do not."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.connectors.guard import OPEN, Bound, Guard, OutOfReach
from headgate.connectors.smtp import Envelope, Server, Tls, send
from headgate.core.reach import Reach
from headgate.errors import ConnectorError
from tests.certificates import Authority
from tests.receivers import MailServer, mail_server

LONG_S = 60.0
ENVELOPE = Envelope(
    "headgate@example.com", ["ada@example.com", "bob@example.com"], b"Subject: x\r\n\r\n.\r\n..dots\r\nend"
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    pair = authority.sign("mail", "localhost")
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(pair.cert, pair.key)
    return found


def there(server: MailServer, tls: Tls, ca_file: Path | None = None, **more: str) -> Server:
    return Server("localhost", server.port, tls, ca_file=None if ca_file is None else str(ca_file), **more)


async def test_a_message_arrives_as_it_was_sent(context: ssl.SSLContext, authority: Authority) -> None:
    plain = MailServer()
    upgraded = MailServer(context, login=("ada", "pass word"))
    wrapped = MailServer(context, is_tls=True, login=("ada", "pass word"), ways="LOGIN")
    with mail_server(plain), mail_server(upgraded), mail_server(wrapped):
        who = {"user": "ada", "password": "pass word"}
        await send(there(plain, "none"), ENVELOPE, OPEN, LONG_S)
        await send(there(upgraded, "starttls", authority.file, **who), ENVELOPE, OPEN, LONG_S)
        await send(there(wrapped, "tls", authority.file, **who), ENVELOPE, OPEN, LONG_S)
    for server in (plain, upgraded, wrapped):
        assert server.raw == [ENVELOPE.message + b"\r\n"]
        assert server.envelopes == [("headgate@example.com", ["ada@example.com", "bob@example.com"])]


async def test_what_is_refused_says_why_and_never_the_password(context: ssl.SSLContext, authority: Authority) -> None:
    server = MailServer(context, login=("ada", "right"))
    with mail_server(server):
        wrong = there(server, "starttls", authority.file, user="ada", password="hunter2-wrong")
        with pytest.raises(ConnectorError, match="refuses AUTH: 535 who are you") as refused:
            await send(wrong, ENVELOPE, OPEN, LONG_S)
        assert "hunter2" not in str(refused.value)
        with pytest.raises(ConnectorError, match="530 authenticate first"):
            await send(there(server, "starttls", authority.file), ENVELOPE, OPEN, LONG_S)
        with pytest.raises(ConnectorError, match="no command may have"):
            hostile = replace(ENVELOPE, recipients=["x@example.com>\r\nRCPT TO:<evil@example.com"])
            right = there(server, "starttls", authority.file, user="ada", password="right")
            await send(right, hostile, OPEN, LONG_S)
    assert server.raw == []


async def test_nothing_is_said_in_the_clear_that_should_not_be(context: ssl.SSLContext, authority: Authority) -> None:
    who = {"user": "ada", "password": "secret"}
    bare = MailServer(login=("ada", "secret"))
    injecting = MailServer(context, login=("ada", "secret"), injects=b"250-mail.test\r\n250 AUTH PLAIN\r\n")
    untrusted = MailServer(context, login=("ada", "secret"))
    with mail_server(bare), mail_server(injecting), mail_server(untrusted):
        with pytest.raises(ConnectorError, match="does not offer STARTTLS"):
            await send(there(bare, "starttls", authority.file, **who), ENVELOPE, OPEN, LONG_S)
        assert bare.commands == ["EHLO headgate"]
        with pytest.raises(ConnectorError, match="before the handshake"):
            await send(there(injecting, "starttls", authority.file, **who), ENVELOPE, OPEN, LONG_S)
        with pytest.raises(ConnectorError, match="certificate that is not accepted"):
            await send(there(untrusted, "starttls", **who), ENVELOPE, OPEN, LONG_S)
    assert "AUTH" not in bare.commands + injecting.commands + untrusted.commands


async def test_a_server_that_talks_without_end_or_not_at_all_costs_little() -> None:
    endless, strange, silent = MailServer(greeting=b"220-hello\r\n" * 20_000), MailServer(), MailServer(greeting=b"")
    strange.greeting = b"HTTP/1.1 400 Bad Request\r\n"
    with mail_server(endless), mail_server(strange), mail_server(silent):
        for server in (endless, strange):
            with pytest.raises(ConnectorError):
                await send(there(server, "none"), ENVELOPE, OPEN, LONG_S)
        with pytest.raises(ConnectorError, match="not taken the message within"):
            await send(there(silent, "none"), ENVELOPE, OPEN, 0.2)
    with pytest.raises(ConnectorError, match="is not reached"):
        await send(there(silent, "none"), ENVELOPE, OPEN, LONG_S)


async def test_the_guard_is_asked_where_it_may_go() -> None:
    server = MailServer()
    with mail_server(server):
        nowhere = Guard((Bound(Reach(addresses=())),))
        with pytest.raises(OutOfReach):
            await asyncio.wait_for(send(there(server, "none"), ENVELOPE, nowhere, LONG_S), LONG_S)
    assert server.commands == []
