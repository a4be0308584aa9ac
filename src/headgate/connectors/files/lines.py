"""What the streaming source and sink share: JSON Lines, and files that are open for one call only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from headgate.connectors.files.errors import steer_worker
from headgate.connectors.guard import Guard

NOT_JSON = (TypeError, ValueError, RecursionError)  # What encoding and decoding raise for what is not JSON.

encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
encode_lines: Callable[[Iterable[object]], bytes] = msgspec.json.Encoder().encode_lines
decode: Callable[[bytes], object] = msgspec.json.Decoder().decode


@contextmanager
def opened(path: str, guard: Guard, flags: int = os.O_RDONLY) -> Iterator[int]:
    """The descriptor of a file, until the end of the block."""
    with steer_worker(path):
        descriptor = guard.open(path, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
