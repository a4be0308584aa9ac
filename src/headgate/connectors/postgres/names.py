"""The names of tables that streams have: a table's option has `{stream}` in it, and each stream that the source names
has its own.

Names come from outside, so what they may become is strict: letters, digits and `_` stay, every other character becomes
`_`, and a name that is too long is cut and ends with a hash of all of it. Two streams that come out alike are refused
(`several.py`), and never mixed.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from headgate.connectors.api import SourceStream

STREAM = "{stream}"
LONGEST = 63  # Bytes of a name.
LEAST_ROOM = 20  # Bytes that a table's name must have for that of a stream.
MOST_TABLES = 1_000  # Of one option: a source could fill a database with tables.


def has_streams(table: str) -> bool:
    """Whether the option names a table for each stream."""
    return STREAM in table


def room_in(table: str) -> int:
    """How many bytes of a table's name the name of a stream may take."""
    return LONGEST - len(table.rpartition(".")[2].replace(STREAM, "").encode())


def table_of(table: str, stream: str) -> str:
    """The table of a stream."""
    room = room_in(table)
    name = re.sub(r"[^A-Za-z0-9_]", "_", stream)
    if len(name) > room:
        name = f"{name[: room - 9]}_{_hashed(stream)[:8]}"
    return table.replace(STREAM, name)


def mark_of(stream: SourceStream) -> str:
    """What tells a stream from others, in a table's comment."""
    return _hashed(repr(stream.whole_name))


def _hashed(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
