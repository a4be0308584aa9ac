"""A connector that lives in a process: a source that counts, a sink in SQLite, and what a test has them do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pydantic import SecretStr

from headgate.connectors import plugins
from headgate.connectors.api import (
    Backlog,
    Batch,
    Connector,
    Context,
    Grant,
    KeyKind,
    Letter,
    LetterOutcome,
    Options,
    Outgoing,
    Position,
    Progress,
    SinkKind,
    SourceKind,
    identity,
)
from headgate.connectors.guard import Guard
from headgate.errors import (
    Bad,
    BadRecords,
    BatchRefused,
    Cause,
    ConfigError,
    ConnectorError,
    EndOfStream,
    Fenced,
    NotConnected,
    RetryLater,
)
from headgate.runtime import descent

NESTED: list[Any] = []
for _ in range(5000):
    NESTED = [NESTED]
ODD = {"at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "price": Decimal("1.10"), "id": 2**70, "raw": b"\xff"}


class LodgerOptions(Options):
    """What is read, and what is done wrong."""

    count: int = identity(100)
    batch: int = 10
    parts: int = 0
    follows: bool = False  # It waits after the last record.
    does: str = ""  # What it does wrong,
    when: str = "read"  # in this method,
    once: str | None = None  # if it can make this file.
    folder: str = ""
    token: SecretStr = SecretStr("")


def misbehave(options: LodgerOptions, method: str) -> Any:
    """Do what is to be done in this method, if anything is."""
    if options.does and options.when == method and (options.once is None or _is_first(options.once)):
        return DEEDS[options.does](options)
    return None


def _is_first(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class LodgerSource:
    """Counts."""

    def __init__(self, options: LodgerOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._next = 0

    async def _do(self, method: str) -> None:
        found = misbehave(self._options, method)
        if asyncio.iscoroutine(found):
            await found

    async def check(self) -> None:
        await self._do("check")

    async def parts(self) -> Sequence[str]:
        await self._do("parts")
        return [f"p{number}" for number in range(self._options.parts)] or [""]

    async def open(self, position: Position) -> None:
        await self._do("open")
        self._context.log.info("opened", at=position, stream_id="not mine")
        self._context.note("lodger_opened", part=self._context.part)
        self._next = 0 if position is None else position + 1

    async def read(self) -> Batch:
        await self._do("read")
        options, first = self._options, self._next
        if first >= options.count:
            if options.follows:
                await asyncio.Event().wait()
            raise EndOfStream("all was counted")
        await asyncio.sleep(0)
        numbers = range(first, min(options.count, first + options.batch))
        self._next = numbers.stop
        records = [{"id": number, "part": self._context.part} for number in numbers]
        meta = [{"n": number} for number in numbers]
        return Batch(records, numbers[-1], 10 * len(records), 1.5, meta, lambda index: f"number {first + index}")

    async def ack(self, position: Position) -> None:
        await self._do("ack")

    async def backlog(self) -> Backlog:
        await self._do("backlog")
        return Backlog(self._options.count - self._next)

    async def mark(self) -> str:
        await self._do("mark")
        return f"pid {os.getpid()}" if self._options.token.get_secret_value() == "pid" else "the lodger's"

    async def close(self) -> None:
        await self._do("close")


class LodgerSink:
    """Keeps rows, the position and the epoch in one file. Its methods block."""

    def __init__(self, options: LodgerOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._database: sqlite3.Connection | None = None
        self._grant: Grant | None = None

    @property
    def _at(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = sqlite3.connect(Path(self._options.folder) / "lodger.db", timeout=60, isolation_level=None)
            for table in (
                "rows (id INTEGER PRIMARY KEY, body TEXT)",
                "streams (stream TEXT PRIMARY KEY, epoch INTEGER, progress BLOB)",
                "letters (id TEXT PRIMARY KEY, letter BLOB)",
            ):
                self._database.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        return self._database

    def check(self) -> None:
        misbehave(self._options, "check")

    def open(self, grant: Grant) -> Progress | None:
        misbehave(self._options, "open")
        with self._transaction() as at:
            row = at.execute("SELECT epoch, progress FROM streams WHERE stream = ?", (str(grant.stream),)).fetchone()
            if row and row[0] >= grant.epoch:
                raise Fenced("another run has the stream")
            if grant.trust_left_s() <= 0:
                raise NotConnected("this node has no trust")
            self._grant = grant
            progress = msgspec.msgpack.decode(row[1], type=Progress) if row else Progress()
            self._keep(at, progress)
        return progress

    def write(self, batch: Outgoing) -> None:
        misbehave(self._options, "write")
        assert self._grant is not None
        if self._grant.trust_left_s() <= 0:
            raise NotConnected("this node has no trust")
        with self._transaction() as at:
            found = at.execute("SELECT epoch FROM streams WHERE stream = ?", (str(self._grant.stream),)).fetchone()
            if found is None or found[0] != self._grant.epoch:
                raise Fenced("another run has the stream")
            self._put(at, batch)
            self._keep(at, batch.progress)

    def _put(self, at: sqlite3.Connection, batch: Outgoing) -> None:
        bad = [Bad(index, "id", "is negative") for index, one in enumerate(batch.records) if one["id"] < 0]
        if bad:
            raise BadRecords(bad)
        for letter in batch.letters:
            at.execute("INSERT OR REPLACE INTO letters VALUES (?, ?)", (str(letter.id), msgspec.msgpack.encode(letter)))
        for index, record in enumerate(batch.records):
            place = batch.places(index) if batch.places is not None else ""
            key = batch.supersedes(record) if batch.supersedes is not None else b""
            body = msgspec.json.encode({**record, "place": place, "key": key} if place or key else record).decode()
            at.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (record["id"], body))

    def rehearse(self, batch: Outgoing) -> None:
        with contextlib.suppress(InterruptedError), self._transaction() as at:
            self._put(at, batch)
            raise InterruptedError

    def outcomes(self) -> dict[UUID, LetterOutcome]:
        return {letter.id: letter.outcome for letter in self._letters()}

    def letters(self, ids: Sequence[UUID]) -> list[Letter]:
        return [letter for letter in self._letters() if letter.id in ids]

    def key_kinds(self, key: Sequence[str]) -> Sequence[KeyKind]:
        return ["integer" for _ in key]

    def forget(self, installation: UUID, streams: Sequence[UUID]) -> None:
        with self._transaction() as at:
            at.executemany("DELETE FROM streams WHERE stream = ?", [(str(one),) for one in streams])

    def close(self) -> None:
        misbehave(self._options, "close")
        if self._database is not None:
            self._database.close()
            self._database = None

    def _letters(self) -> list[Letter]:
        rows = self._at.execute("SELECT letter FROM letters").fetchall()
        return [msgspec.msgpack.decode(row[0], type=Letter) for row in rows]

    def _keep(self, at: sqlite3.Connection, progress: Progress) -> None:
        assert self._grant is not None
        row = (str(self._grant.stream), self._grant.epoch, msgspec.msgpack.encode(progress))
        at.execute("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", row)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._at.execute("BEGIN IMMEDIATE")
        try:
            yield self._at
        except BaseException:
            self._at.execute("ROLLBACK")
            raise
        self._at.execute("COMMIT")


# What it can do wrong.


def _wire() -> socket.socket:
    """The one that blocks: a loop's own do not."""
    found = [one for one in gc.get_objects() if isinstance(one, socket.socket) and one.family == socket.AF_UNIX]
    return next(one for one in found if one.fileno() >= 0 and one.gettimeout() is None)


def _garbage(options: LodgerOptions) -> None:
    """Write past the wire's own rules."""
    _wire().sendall(b"\x00\x00\x00\x03\x00xyz")


def _lie(options: LodgerOptions) -> None:
    """Announce more than anybody would take."""
    _wire().sendall(b"\xff\xff\xff\xff\x01")


def _fork(options: LodgerOptions) -> None:
    """Leave a process behind that no signal but one ends, in its own session."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            (Path(options.folder) / "left").write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)


def _hog(options: LodgerOptions) -> None:
    kept = []
    while True:
        kept.append(bytearray(16 << 20))
        kept[-1][::4096] = b"x" * len(kept[-1][::4096])
        time.sleep(0.005)


def _flood(options: LodgerOptions) -> None:
    from headgate.runtime.apart.wire import Said, framed

    wire, line = _wire(), b"".join(framed(Said("info", "again", {})))
    for _ in range(100_000):
        wire.sendall(line)


def _raises(error: Callable[[], BaseException]) -> Callable[[LodgerOptions], Any]:
    def deed(options: LodgerOptions) -> None:
        raise error()

    return deed


def _environment(options: LodgerOptions) -> None:
    found = sorted(name for name in os.environ if name.startswith("HEADGATE"))
    raise ConnectorError(f"{found} {options.token.get_secret_value()}")


def _steal(options: LodgerOptions) -> None:
    Path(options.folder, "master.key").read_text()


def _connect(options: LodgerOptions) -> None:
    socket.create_connection(("127.0.0.1", int(options.token.get_secret_value())))


DEEDS: dict[str, Callable[[LodgerOptions], Any]] = {
    "hang": lambda options: asyncio.Event().wait(),
    "ignore": lambda options: _ignore(),
    "block": lambda options: time.sleep(600),
    "exit": lambda options: os._exit(3),
    "crash": lambda options: ctypes.string_at(0),
    "hog": _hog,
    "leap": lambda options: bytearray(1 << 40),
    "garbage": _garbage,
    "lie": _lie,
    "flood": _flood,
    "fork": _fork,
    "environment": _environment,
    "steal": _steal,
    "connect": _connect,
    "leave": lambda options: sys.exit(4),
    "NotConnected": _raises(lambda: NotConnected("away", hint="wait")),
    "RetryLater": _raises(lambda: RetryLater("patience", after_s=0.25)),
    "Fenced": _raises(lambda: Fenced("another")),
    "BatchRefused": _raises(lambda: BatchRefused("one of them")),
    "BadRecords": _raises(lambda: BadRecords([Bad(1, "id", "is odd"), Bad(2, None, "is even")])),
    "NoSuchRecords": _raises(lambda: BadRecords([Bad(10**6, "id", "is not there")])),
    "AUTH": _raises(lambda: ConnectorError("no", cause=Cause.AUTH, hint="a password")),
    "ConfigError": _raises(lambda: ConfigError("folder: is missing", hint="name one")),
    "ValueError": _raises(lambda: ValueError("a bug\udcff")),
    "OSError": _raises(lambda: ConnectionResetError("reset by peer")),
}


async def _ignore() -> None:
    """Go on, whoever cancels it."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)


async def probe(options: LodgerOptions, guard: Guard) -> None:
    """Away, or there."""
    misbehave(options, "probe")


def tell_move(before: Position, after: Position) -> str:
    """In which process this is said."""
    return f"from {before} to {after} in {os.path.basename(sys.argv[0])}"


CONNECTOR = Connector(
    "lodger",
    "Lives in a process",
    source=SourceKind(
        LodgerOptions,
        LodgerSource,
        knows_backlog=True,
        in_parts=True,
        is_marked=True,
        tell_move=tell_move,
        probe=probe,
    ),
    sink=SinkKind(LodgerOptions, LodgerSink, transactional=True, keeps_letters=True, forgets=True),  # type: ignore[arg-type]
    runs="process",
)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip would, for this process and those that it starts."""
    package = folder / "lodger-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: lodger\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[headgate.connectors]\nlodger = tests.lodger:CONNECTOR\n")
    monkeypatch.syspath_prepend(folder)
    forget_plugins()


def forget_plugins() -> None:
    """Look again at what is installed."""
    plugins._entries.cache_clear()
    plugins.get.cache_clear()


def kept(folder: Path) -> list[dict[str, Any]]:
    """All rows that its sink has written there."""
    with contextlib.closing(sqlite3.connect(folder / "lodger.db")) as database:
        rows = database.execute("SELECT body FROM rows ORDER BY id").fetchall()
    return [msgspec.json.decode(row[0]) for row in rows]


def wardens(node: int) -> list[int]:
    """Those that this process has started."""
    found = []
    for pid in descent.children(node):
        with contextlib.suppress(OSError):
            if b"apart.warden" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
