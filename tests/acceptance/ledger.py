"""A sink that counts: an append-only file with a line for every batch, and what may be said about its lines.

The sink is plain: it knows no transaction and fences nobody, so its file tells what really happened, in the order in
which it happened. Each line has the stream, the epoch it was written under, and the ids of the batch. Nodes find the
connector as they find any other, by an entry point: `plug_in` makes a folder that has one.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection
from itertools import zip_longest
from pathlib import Path

import msgspec
from pydantic import Field

from headgate.connectors.api import Connector, Context, Grant, Options, Outgoing, SinkKind, identity

ROOT = Path(__file__).parent.parent.parent


class LedgerOptions(Options):
    """Where to write, and what to wait for."""

    path: str = identity()
    gate: str = Field("", description="A file; while it is there, writes wait. They say so in a file beside it.")


class Line(msgspec.Struct):
    """One batch."""

    stream: str
    epoch: int
    ids: list[int]


class LedgerSink:
    """Appends a line per batch. Its methods block."""

    def __init__(self, options: LedgerOptions, context: Context) -> None:
        self._options = options
        self._grant: Grant | None = None

    def check(self) -> None:
        """There is nothing that could be missing."""

    def open(self, grant: Grant) -> None:
        """Write under this grant. The registry alone knows the position."""
        self._grant = grant

    def write(self, batch: Outgoing) -> None:
        """One line, in one piece, on the disk."""
        assert self._grant is not None
        while self._options.gate and os.path.exists(self._options.gate):
            Path(self._options.gate + ".reached").touch()
            time.sleep(0.02)
        line = Line(self._grant.name, self._grant.epoch, [record["id"] for record in batch.records])
        descriptor = os.open(self._options.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(line) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """No file is held open."""


CONNECTOR = Connector("ledger", "Counts", sink=SinkKind(LedgerOptions, LedgerSink), runs="thread")


def plug_in(folder: Path) -> str:
    """Make the connector known to nodes that have this path as PYTHONPATH."""
    package = folder / "ledger-1.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: ledger\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[headgate.connectors]\nledger = tests.acceptance.ledger:CONNECTOR\n")
    return os.pathsep.join([str(folder), str(ROOT)])


class Ledger:
    """The file, for whoever audits it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> dict[str, list[Line]]:
        """All lines of each stream, in order. A line that is being written does not count yet."""
        found: dict[str, list[Line]] = defaultdict(list)
        data = self.path.read_bytes() if self.path.exists() else b""
        for text in data[: data.rfind(b"\n") + 1].splitlines():
            line = msgspec.json.decode(text, type=Line)
            found[line.stream].append(line)
        return found

    def sizes(self) -> dict[str, int]:
        """How many different records of each stream there are."""
        return {stream: len(set(_ids(lines))) for stream, lines in self.lines().items()}

    def check(self, crashed: Collection[str] = (), interrupted: Collection[str] = ()) -> None:
        """Nothing is lost, and nothing repeated but by a crash, or what an interruption of a run left in doubt."""
        for stream, lines in self.lines().items():
            ids = _ids(lines)
            assert set(ids) == set(range(max(ids) + 1)), f"{stream} has lost records"
            _check_epochs(stream, lines)
            if stream in crashed:
                continue
            if stream in interrupted:
                ids = _ids(_settled(lines))
            assert ids == list(range(len(ids))), f"{stream} has repeats, or is out of order"


def _ids(lines: list[Line]) -> list[int]:
    return [id for line in lines for id in line.ids]


def _settled(lines: list[Line]) -> list[Line]:
    """Without each run's last line, if the next run wrote it again: its run never learned that it had been written."""
    return [line for line, after in zip_longest(lines, lines[1:]) if after is None or after.ids[0] != line.ids[0]]


def _check_epochs(stream: str, lines: list[Line]) -> None:
    """Whoever has been succeeded writes at most what was under way."""
    late: dict[int, int] = defaultdict(int)
    highest = 0
    for line in lines:
        highest = max(highest, line.epoch)
        late[line.epoch] += line.epoch < highest
    assert max(late.values()) <= 1, f"{stream}: writes after a successor's, by epoch: {dict(late)}"
