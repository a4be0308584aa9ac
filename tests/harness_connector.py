"""A connector that misbehaves in every way a test of the harness needs, and how it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headgate.connectors.api import (
    Backlog,
    Batch,
    Connector,
    Context,
    Grant,
    Options,
    Outgoing,
    Position,
    Progress,
    SinkKind,
    SourceKind,
)
from headgate.errors import Bad, BadRecords, BatchRefused, EndOfStream, NotConnected


class RogueOptions(Options):
    """What to do."""

    does: str = "nothing"
    value: str = ""


class RogueSource:
    """Does it when it is read."""

    def __init__(self, options: RogueOptions, context: Context) -> None:
        self._options = options
        self._context = context

    async def check(self) -> None:
        if self._options.does == "refuse":
            raise NotConnected("the rogue is away")

    async def parts(self) -> Sequence[str]:
        return [""]

    async def open(self, position: Position) -> None:
        self._context.log.info("opened", secret=self._options.value)

    async def read(self) -> Batch:
        result = DEEDS[self._options.does](self._options.value)
        if asyncio.iscoroutine(result):
            result = await result
        records = result if isinstance(result, list) else [{"value": result}]
        return Batch(records, len(records))

    async def ack(self, position: Position) -> None:
        raise AssertionError("a test acknowledges nothing")

    async def close(self) -> None:
        pass


class RogueSink:
    """Takes everything back. Refuses records by their field `refuse`."""

    def __init__(self, options: RogueOptions, context: Context) -> None:
        self._options = options

    async def check(self) -> None:
        if self._options.does == "refuse":
            raise NotConnected("the rogue is away")

    async def open(self, grant: Grant) -> Progress | None:
        raise AssertionError("a test opens no sink")

    async def columns(self) -> list[str]:
        return ["id", "refuse"]

    async def write(self, batch: Outgoing) -> None:
        raise AssertionError("a test writes nothing")

    async def rehearse(self, batch: Outgoing) -> None:
        named = [i for i, one in enumerate(batch.records) if one.get("refuse") == "by name"]
        if named:
            raise BadRecords([Bad(i, "refuse", "is refused by name") for i in named])
        if any(one.get("refuse") == "silently" for one in batch.records):
            raise BatchRefused("a constraint is broken")

    async def close(self) -> None:
        pass


def _loop(value: str) -> None:
    while True:
        pass


def _fork(value: str) -> None:
    while True:
        try:
            if os.fork() == 0 and value:
                os.setsid()
        except OSError:
            time.sleep(0.001)


def _children(value: str) -> str:
    """Leave some behind that nobody waits for."""
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
    return "left"


def _memory(value: str) -> int:
    kept = []
    while True:
        kept.append(bytearray(b"x" * 10_000_000))
        time.sleep(0.001)
    return len(kept)


def _write(value: str) -> None:
    while True:
        sys.stdout.write("x" * 100_000)


def _ignore(value: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)


async def _sleep(value: str) -> None:
    await asyncio.sleep(600)


def _open_files() -> list[str]:
    """What each descriptor leads to; the one that reads the folder is closed by then."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(found)


def _who(value: str) -> dict[str, Any]:
    readable = os.access(value, os.R_OK) if value else None
    return {
        "uid": os.getuid(),
        "groups": os.getgroups(),
        "environment": sorted(os.environ),
        "files": _open_files(),
        "parent": os.getppid(),
        "can_read": readable,
        "privileges": [line for line in Path("/proc/self/status").read_text().splitlines() if "NoNewPrivs" in line],
    }


def _connect(value: str) -> str:
    host, _, port = value.rpartition(":")
    with socket.create_connection((host, int(port)), 2):
        return "connected"


def _raise(value: str) -> None:
    raise RuntimeError(f"a bug that says {value}")


def never_ends(record: dict[str, Any], meta: Any) -> dict[str, Any]:
    """A mapping's own function."""
    _loop("")
    return record


def obey(record: dict[str, Any], meta: Any) -> dict[str, Any]:
    """Another one: does what the record says."""
    if deed := record.pop("do", None):
        DEEDS[deed]("")
    return record


DEEDS: dict[str, Callable[[str], Any]] = {
    "nothing": lambda value: "nothing",
    "refuse": lambda value: "nothing",
    "loop": _loop,
    "fork": _fork,
    "children": _children,
    "memory": _memory,
    "many": lambda value: [{"id": i} for i in range(100_000)],
    "sleep": _sleep,
    "exit": lambda value: os._exit(3),
    "segfault": lambda value: ctypes.string_at(0),
    "write": _write,
    "ignore": _ignore,
    "who": _who,
    "connect": _connect,
    "raise": _raise,
    "flood": lambda value: [{"id": i, "text": "x" * 100_000} for i in range(1000)],
}


def _build_source(options: RogueOptions, context: Context) -> RogueSource:
    return RogueSource(options, context)


CONNECTOR = Connector(
    name="rogue",
    summary="Does what it should not",
    source=SourceKind(RogueOptions, _build_source),
    sink=SinkKind(RogueOptions, RogueSink, transactional=True, keeps_letters=True),
)


class HangingSource(RogueSource):
    """Hangs when it is read, until the file `value` is there, though it knows that three records wait."""

    async def open(self, position: Position) -> None:
        self._is_over = position is not None

    async def read(self) -> Batch:
        while not Path(self._options.value).exists():
            await asyncio.sleep(0.02)
        if self._is_over:
            raise EndOfStream("that was all")
        self._is_over = True
        return Batch([{"id": number} for number in range(3)], 3)

    async def backlog(self) -> Backlog:
        return Backlog(records=3)

    async def ack(self, position: Position) -> None: ...


class BlockingSource(RogueSource):
    """Hangs in a thread of its own, and says nothing meanwhile."""

    def open(self, position: Position) -> None: ...  # type: ignore[override]

    def parts(self) -> Sequence[str]:  # type: ignore[override]
        return [""]

    def read(self) -> Batch:  # type: ignore[override]
        time.sleep(600)
        raise AssertionError

    def check(self) -> None: ...  # type: ignore[override]

    def close(self) -> None: ...  # type: ignore[override]

    def backlog(self) -> Backlog:
        return Backlog(records=3)


HANGING = Connector(name="hanging", summary="Hangs", source=SourceKind(RogueOptions, HangingSource, knows_backlog=True))
BLOCKING = Connector(
    name="blocking",
    summary="Hangs in a thread",
    source=SourceKind(RogueOptions, BlockingSource, knows_backlog=True),  # type: ignore[arg-type]
    runs="thread",
)
_INSTALLED = {"rogue": "CONNECTOR", "hanging": "HANGING", "blocking": "BLOCKING"}


def install(folder: Path) -> None:
    """As pip would, for a process that has this folder on its path."""
    package = folder / "rogue-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: rogue\nVersion: 1\n")
    lines = [f"{name} = tests.harness_connector:{constant}" for name, constant in _INSTALLED.items()]
    (package / "entry_points.txt").write_text("\n".join(["[headgate.connectors]", *lines, ""]))
