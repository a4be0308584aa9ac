"""Whether two ranges hold the same rows: a count, the NULLs of each column, and a hash that no order changes.

Where both storages hash in the server (`DigestsInServer`), only numbers travel. Any other pair is read as for a copy,
and each row is hashed here: the text of it where both sides render the same, which most rows of most tables do; else
its values by what they mean, so that `1.50` in a column of another scale, a document with its keys in another order, or
a moment kept as text are no differences.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from headgate.connectors.api.bulk import MASK, PLAIN, Column, Csv, Digest, Language, Range, Reader, Table
from headgate.connectors.values.convert import common, translated
from headgate.connectors.values.kinds import TEXT

_ALIKE = Csv(alike=True)


def has_lines(one: Reader, other: Reader) -> bool:
    """Whether rows of both sides can be compared by their text, before anybody asks what it means."""
    return Language.CSV in one.languages and Language.CSV in other.languages


async def digest_of_lines(reader: Reader, table: Table, range: Range) -> Digest | None:
    """Read a range as text, and hash each line. Where that is equal so are the rows; where it is not they may still be,
    since numbers and moments can be written in more ways than one. None: a newline in a value makes two lines of it."""
    found = Digest()
    lines = 0
    rest = bytearray()  # Of a line that comes in parts: it may be long, and is put together once.
    async for piece in reader.query(table, range, Language.CSV, _ALIKE):
        found.rows += piece.rows
        rest += piece.data
        if b"\n" not in piece.data:
            continue
        whole = bytes(rest).split(b"\n")
        rest = bytearray(whole.pop())
        lines += len(whole)
        found.sum = (found.sum + sum(map(hash, whole))) & MASK
    return found if lines == found.rows else None


async def digest(
    reader: Reader, table: Table, range: Range, columns: Sequence[Column], *, keep: bool = False, as_text: bool = False
) -> Digest:
    """Read a range as for a copy, and hash each row as values of these columns. `keep` also keeps each row's hash;
    `as_text` hashes the text of each value, of two storages that write CSV, whatever it means."""
    from headgate.connectors.values.hashes import add

    found = Digest(nulls={column.name: 0 for column in columns}, hashes=Counter() if keep else None)
    language = Language.CSV if as_text else common(reader.languages, (Language.ARROW, Language.CSV, Language.ROWS))
    have, want = (_texts(table.columns), _texts(columns)) if as_text else (table.columns, columns)
    pieces = reader.query(table, range, language, PLAIN)
    async for piece in translated(pieces, language, Language.ARROW, have):
        await asyncio.to_thread(add, found, piece.data, have, want)
    return found


async def rows_in(reader: Reader, table: Table, range: Range) -> int:
    """How many rows a range has."""
    language = common(reader.languages, (Language.ARROW, Language.CSV, Language.ROWS))
    return sum([piece.rows async for piece in reader.query(table, range, language, PLAIN)])


def _texts(columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(replace(column, type=TEXT) for column in columns)
