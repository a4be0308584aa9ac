"""Long values of bytes in canonical CSV, which are not given to Arrow's parser.

They come as digits, twice as long as the bytes are, and the parser would hold three copies of them. Here the digits
stay where they are: the parser gets a short random word in their place, and where it finds that word as a value of
bytes, the digits are read straight into the array's buffer.
"""

from __future__ import annotations

import re
import secrets
from binascii import unhexlify
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from headgate.connectors.api.bulk import Column
from headgate.connectors.values.convert import Buffer, cannot_hold

LEAST = 1 << 20  # Digits of a value that is long.
AT_ONCE = 4 << 20  # Digits that are read in one go: other threads have turns in between.
MOST = 2**31 - 1  # Bytes of an array.

_BEGIN, _END = re.compile(rb"\\x"), re.compile(rb'[,"\n]')


class LongBytes:
    """Whole records of CSV, and the long values in them."""

    def __init__(self, data: memoryview) -> None:
        self._texts: dict[str, memoryview] = {}
        parts: list[Buffer] = []
        at = 0
        for begin, end in _found(data):
            word = f"\\x{secrets.token_hex(16)}"
            self._texts[word] = data[begin:end]
            parts += [data[at:begin], word.encode()]
            at = end
        self.rest: Buffer = b"".join([*parts, data[at:]]) if parts else data

    def __bool__(self) -> bool:
        return bool(self._texts)

    def are_in(self, arrays: Iterable[pa.Array]) -> bool:
        """Whether each of them is a value of one of these columns. A text may look like one."""
        found = [text for array in arrays for text in array.to_pylist() if text in self._texts]
        return sorted(found) == sorted(self._texts)

    def array(self, texts: Sequence[str | None], column: Column) -> pa.Array:
        """The values of a column of bytes."""
        all = [self._texts.get(text, text.encode()) if text is not None else b"\\x" for text in texts]
        ends = np.zeros(len(all) + 1, np.int64)
        np.cumsum([len(one) // 2 - 1 for one in all], out=ends[1:])
        if ends[-1] > MOST or any(bytes(one[:2]) != b"\\x" for one in all):
            raise cannot_hold(column)
        value = bytearray(int(ends[-1]))
        for begin, one in zip(ends.tolist(), all, strict=False):
            _read(value, begin, one, column)
        is_there = np.packbits([text is not None for text in texts], bitorder="little")
        buffers = [pa.py_buffer(is_there), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(value)]
        return pa.Array.from_buffers(pa.binary(), len(all), buffers)


def _found(data: memoryview) -> Iterable[tuple[int, int]]:
    """Where long values may begin, and where they end."""
    at = 0
    while len(data) - at > LEAST and (begin := _BEGIN.search(data, at)) is not None:
        at = begin.end()
        if _END.search(data, at, at + LEAST) is None:
            at = _end(data, at + LEAST)
            yield begin.start(), at


def _end(data: memoryview, at: int) -> int:
    while at < len(data):
        if (found := _END.search(data, at, at + AT_ONCE)) is not None:
            return found.start()
        at += AT_ONCE
    return len(data)


def _read(value: bytearray, at: int, digits: Buffer, column: Column) -> None:
    """Put the bytes that these digits say at this place."""
    try:
        for begin in range(2, len(digits), AT_ONCE):
            some = unhexlify(digits[begin : begin + AT_ONCE])
            value[at : at + len(some)] = some
            at += len(some)
    except ValueError:
        raise cannot_hold(column, ValueError("a value is not \\x and digits")) from None
