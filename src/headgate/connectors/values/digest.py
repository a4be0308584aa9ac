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

from headgate.connectors.api.bulk import PLAIN, Column, Csv, Digest, Language, Range, Reader, Table
from headgate.connectors.values.convert import common, translated

MASK = (1 << 64) - 1
_ALIKE = Csv(alike=True)


def has_lines(one: Reader, other: Reader) -> bool:
    """Whether rows of both sides can be compared by their text, before anybody asks what it means."""
    return Language.CSV in one.languages and Language.CSV in other.languages


async def digest_of_lines(reader: Reader, table: Table, range: Range) -> Digest | None:
    """Read a range as text, and hash each line. Where that is equal so are the rows; where it is not they may still be,
    since numbers and moments can be written in more ways than one. None: a newline in a value makes two lines of it."""
    found = Digest()
    lines = 0
    rest = b""
    async for piece in reader.query(table, range, Language.CSV, _ALIKE):
        whole = (rest + piece.data).split(b"\n")
        rest = whole.pop()
        lines += len(whole)
        found.rows += piece.rows
        found.sum = (found.sum + sum(map(hash, whole))) & MASK
    return found if lines == found.rows else None


async def digest(
    reader: Reader, table: Table, range: Range, columns: Sequence[Column], *, keep: bool = False
) -> Digest:
    """Read a range as for a copy, and hash each row as values of these columns. `keep` also keeps each row's hash."""
    from headgate.connectors.values.hashes import add

    found = Digest(nulls={column.name: 0 for column in columns}, hashes=Counter() if keep else None)
    language = common(reader.languages, (Language.ARROW, Language.CSV, Language.ROWS))
    pieces = reader.query(table, range, language, PLAIN)
    async for piece in translated(pieces, language, Language.ARROW, table.columns):
        await asyncio.to_thread(add, found, piece.data, table.columns, columns)
    return found
