"""The ledger of a target: one line for each chunk that is in it, written with the chunk's rows.

    headgate_dump_chunk (dump, target, mark, lo, hi, rows, at), unique in (dump, target, mark)

The chunk's key stands for its two bounds, which may be longer than an index can hold. A last line, `FINISHED`, says
that the table is complete: what was built apart is in its place, and indexes and constraints are there.

SQL databases share the statements below. Files and MongoDB keep the same lines in their own ways.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import msgspec

from headgate.core.chunks import Bound, Range

TABLE = "headgate_dump_chunk"
FINISHED = "finished"
SWAPPING = "swapping"  # Written before a swap that no transaction covers.
# The column with the chunk's key. It keeps this name because targets have ledgers of dumps that may be resumed.
KEY = "mark"


def text_of(bound: Bound | None) -> str:
    """A bound as JSON."""
    return msgspec.json.encode(bound).decode()


def bound_of(text: str) -> Bound | None:
    """The bound of that JSON."""
    found: list[str] | None = msgspec.json.decode(text)
    return None if found is None else tuple(found)


def key_of(range: Range, target: str = "") -> str:
    """What stands for a chunk in the ledger; with its target, what stands for it among the chunks of all tables."""
    return hashlib.sha256(f"{target}{text_of(range.lo)} {text_of(range.hi)}".encode()).hexdigest()[:32]


def line_of(range: Range) -> tuple[str, str, str]:
    """Key, lo and hi."""
    return key_of(range), text_of(range.lo), text_of(range.hi)


def range_of(lo: str, hi: str) -> Range:
    """The chunk of a line."""
    end = bound_of(hi)
    assert end is not None, "a chunk ends somewhere"
    return Range(bound_of(lo), end)


def rows_by_range(lines: Iterable[tuple[str, str, int]]) -> dict[Range, int]:
    """The chunks of lines of `Statements.done`, with their rows."""
    return {range_of(lo, hi): int(rows) for lo, hi, rows in lines}


class Statements:
    """The ledger's statements in one dialect.

    `place` is how a parameter is written, by its number from 1; parameters are given in the order of their numbers.
    `rows` is how the column of that name is written. `columns` is what stands between the brackets of CREATE TABLE,
    with the dialect's types, and `rest` what follows them.
    """

    def __init__(self, place: Callable[[int], str], columns: str, *, rest: str = "", rows: str = "rows") -> None:
        of_job = f"FROM {TABLE} WHERE dump = {place(1)} AND target = {place(2)}"
        names = f"dump, target, {KEY}, lo, hi, {rows}"
        self.create = f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns}, PRIMARY KEY (dump, target, {KEY})) {rest}"
        # Dump, target, key, lo, hi, rows.
        self.write = f"INSERT INTO {TABLE} ({names}) VALUES ({', '.join(place(number) for number in range(1, 7))})"
        # Dump, target.
        self.done = f"SELECT lo, hi, {rows} {of_job} AND {KEY} NOT IN ('{FINISHED}', '{SWAPPING}')"
        self.forget = f"DELETE {of_job}"
        # Dump, target, key.
        self.has = f"SELECT 1 {of_job} AND {KEY} = {place(3)}"
        self.forget_one = f"{self.forget} AND {KEY} = {place(3)}"
        # Dump.
        self.clean = f"DELETE FROM {TABLE} WHERE dump = {place(1)}"
        self.any = f"SELECT 1 FROM {TABLE} LIMIT 1"
        self.drop = f"DROP TABLE {TABLE}"
        # Dumps and targets without a last line.
        self.unfinished = (
            f"SELECT DISTINCT dump, target FROM {TABLE} a WHERE NOT EXISTS (SELECT 1 FROM {TABLE} b"
            f" WHERE b.dump = a.dump AND b.target = a.target AND b.{KEY} = '{FINISHED}')"
        )
        # The same of one target.
        self.unfinished_of = f"{self.unfinished} AND a.target = {place(1)}"


def last_line(name: str = FINISHED) -> tuple[str, str, str, int]:
    """Key, bounds and rows of a line that is no chunk's."""
    return name, "", "", 0
