"""Writes records to standard output, one JSON object per line.

The lines go straight to the file descriptor: what a buffer kept after a failed flush would come out a second time when
the batch is tried again.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from headgate.connectors.api import Connector, Context, Grant, Options, Outgoing, Progress, SinkKind
from headgate.errors import Bad, BadRecords, NotConnected

_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
_one_batch_at_a_time = threading.Lock()  # Streams share the one output; a long write to a pipe goes out in pieces.


class StdoutOptions(Options):
    """There is nothing to choose."""


class Stdout:
    """The sink. A batch is out when the operating system has taken all of it."""

    def __init__(self, options: StdoutOptions, context: Context) -> None:
        pass

    async def check(self) -> None:
        _descriptor()

    async def open(self, grant: Grant) -> Progress | None:
        _descriptor()
        return None

    async def write(self, batch: Outgoing) -> None:
        await asyncio.to_thread(_write, _lines(batch.records))

    async def close(self) -> None:
        """Standard output belongs to the process, not to the sink."""


def _descriptor() -> int:
    try:
        return sys.stdout.fileno()
    except (AttributeError, OSError, ValueError) as error:  # It is absent, not a file, or closed.
        raise NotConnected("standard output is closed") from error


def _write(data: bytes) -> None:
    with _one_batch_at_a_time:
        descriptor = _descriptor()
        left = memoryview(data)
        try:
            sys.stdout.flush()  # What the process printed earlier comes first.
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError as error:
            raise NotConnected(f"standard output cannot be written: {error.strerror}") from error


def _lines(records: list[dict[str, Any]]) -> bytes:
    """The records as JSON Lines."""
    lines, bad = [], []
    for index, record in enumerate(records):
        try:
            lines.append(_encode(record))
        except (TypeError, ValueError, RecursionError):
            bad.append(Bad(index, None, "cannot be written as JSON"))
    if bad:
        raise BadRecords(bad)
    return b"\n".join([*lines, b""])


CONNECTOR = Connector(
    name="stdout",
    summary="Writes JSON Lines to standard output",
    sink=SinkKind(options=StdoutOptions, build=Stdout, promise="at least once"),
)
