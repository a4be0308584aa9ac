"""The ways by which the process of a test reaches a socket that its user may not open: to one place, as one user."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from headgate.connectors.api import LocalSocket
from headgate.connectors.guard import OPEN, Bound, Guard
from headgate.connectors.postgres.startup import sockets_of
from headgate.core.reach import Reach
from headgate.runtime.harness import doorways
from headgate.runtime.harness.doorways import Dial, Doorways


def startup(version: int = 3 << 16, **fields: str) -> bytes:
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in fields.items()) + b"\0"
    return struct.pack("!ii", len(body) + 8, version) + body


def of_user(url: str, user: str, database: str | None = None) -> str:
    """The same server as another user, in another database."""
    return url.replace("//headgate@", f"//{user}@").replace(f"{urlsplit(url).path}?", f"/{database or user}?")


@asynccontextmanager
async def dialled(sockets: list[LocalSocket], guard: Guard = OPEN) -> AsyncIterator[Dial]:
    """What the process of a test has of its doorways."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.settimeout(60.0)
    doors = Doorways(sockets, guard)
    serving = asyncio.create_task(doors.serve(ours))
    try:
        yield Dial(theirs, doors.paths)
    finally:
        theirs.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        ours.close()


async def answered(dial: Dial, path: str, *pieces: bytes) -> bytes:
    """The first byte that comes back; nothing if the conversation is broken off."""

    def talk() -> bytes:
        with dial.open(path) as connected:
            connected.settimeout(60.0)
            for piece in pieces:
                connected.sendall(piece)
            return connected.recv(1)

    try:
        return await asyncio.to_thread(talk)
    except (ConnectionResetError, BrokenPipeError):
        return b""


# Who says what.

URL = "postgresql://demo:pw@/shop?host=/run/pg&port=5433"
GOOD = startup(user="demo", database="shop", client_encoding="utf-8")


def test_a_session_of_the_urls_own_user_and_database_is_let_through_once_it_has_said_all() -> None:
    (door,) = sockets_of(URL)
    assert door.path == "/run/pg/.s.PGSQL.5433"
    assert [door.admits(GOOD[:length]) for length in (0, 7, 8, len(GOOD) - 1)] == [None] * 4
    assert door.admits(GOOD) is True
    assert door.admits(GOOD + b"more") is True


@pytest.mark.parametrize(
    "first",
    [
        startup(user="headgate", database="shop"),
        startup(user="demo", database="headgate"),
        startup(user="demo"),
        startup(database="shop"),
        startup(user="demo", database="shop", replication="database"),
        startup(user="demo", database="shop")[:-1] + b"user\0headgate\0\0",
        startup(version=80877103),  # TLS,
        startup(version=80877104),  # GSSAPI,
        struct.pack("!iiii", 16, 80877102, 1, 1),  # and a cancellation.
        struct.pack("!ii", 2**31 - 1, 3 << 16),
        struct.pack("!ii", -1, 3 << 16),
        struct.pack("!ii", 8, 3 << 16),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_no_other_is(first: bytes) -> None:
    (door,) = sockets_of(URL)
    assert door.admits(first) is False


@pytest.mark.parametrize(
    ("url", "paths"),
    [
        ("postgresql://u@db.example.com/shop", []),
        ("postgresql:///shop?host=/run/pg", []),  # Nobody knows as whom.
        ("postgresql://u@%2FVar%2Frun:5433/shop", ["/Var/run/.s.PGSQL.5433"]),
        ("postgresql:///shop?host=/a,/b&user=u", ["/a/.s.PGSQL.5432", "/b/.s.PGSQL.5432"]),
    ],
)
def test_only_sockets_in_folders_have_doorways(url: str, paths: list[str]) -> None:
    assert [one.path for one in sockets_of(url)] == paths


# On a real server.


async def test_a_process_gets_through_to_the_server_as_its_own_user_and_as_no_other(url: str) -> None:
    doors = sockets_of(url)
    name = urlsplit(url).path.removeprefix("/")
    (path,) = [one.path for one in doors]
    assert path.startswith(parse_qs(urlsplit(url).query)["host"][0])
    good = startup(user="headgate", database=name)
    async with dialled(doors) as dial:
        assert await answered(dial, path, good) == b"R"
        assert await answered(dial, path, good[:5], good[5:]) == b"R"
        assert await answered(dial, path, startup(user="headgate", database="postgres")) == b""
        assert await answered(dial, path, b"x" * 40_000) == b""
    async with dialled(sockets_of(of_user(url, "demo"))) as dial:
        assert await answered(dial, path, good) == b""  # The superuser, whom the server would believe.


async def test_nothing_else_can_be_asked_for(url: str, tmp_path: Path) -> None:
    doors = sockets_of(url)
    async with dialled(doors) as dial:
        for number in (b"1", b"-1", b"99999999999", b"x", b"\xff"):
            dial._wire.send(number)
            assert await asyncio.to_thread(dial._wire.recv, 16) == doorways.REFUSED
    gone = LocalSocket(str(tmp_path / "absent"), lambda first: True)
    file = LocalSocket(str(tmp_path / "file"), lambda first: True)
    (tmp_path / "file").touch()
    async with dialled([gone, file]) as dial:
        for path in (gone.path, file.path):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.to_thread(dial.open, path)


async def test_the_guard_has_its_say(url: str, tmp_path: Path) -> None:
    doors = sockets_of(url)
    async with dialled(doors, Guard((Bound(Reach(folders=(str(tmp_path),))),))) as dial:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(dial.open, doors[0].path)


async def test_what_a_test_says_and_how_often_at_once_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorways, "MOST_OPEN", 3)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    path = str(tmp_path / "echo")
    async with await asyncio.start_unix_server(echo, path):
        doors = [LocalSocket(path, lambda first: True if first else None)]
        async with dialled(doors) as dial:
            held = [await asyncio.to_thread(dial.open, path) for _ in range(3)]
            with pytest.raises(ConnectionRefusedError):
                await asyncio.to_thread(dial.open, path)
            held[0].sendall(b"hello")
            assert await asyncio.to_thread(held[0].recv, 16) == b"hello"
            for one in held:
                one.close()
        monkeypatch.setattr(doorways._Allowance, "__init__", lambda self: setattr(self, "left", 1000))
        async with dialled(doors) as dial:
            assert await answered(dial, path, b"x" * 400) == b"x"
            assert await answered(dial, path, b"x" * 400) == b""  # It is heard, and said again, which is too much.


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has what others have not")
async def test_the_server_of_these_tests_is_closed_to_others(url: str) -> None:
    """Else the tests above would prove little."""
    (path,) = [one.path for one in sockets_of(url)]
    assert os.stat(os.path.dirname(path)).st_mode & 0o077 == 0
