"""Makes records out of nothing: for demos, for load tests, and for trying out a mapping or a sink.

Record i is a pure function of (seed, i), so a stream that continues after any position makes what it would have made
without the pause. The only exception is the present moment: `ts` of the default order, and fields of the kind `now`.

Everything costly is drawn once, into tables whose lengths are different primes; a record takes one entry of each. That
is what makes millions of records per second possible. Values of one field therefore repeat after its table's length,
while sequences, times and UUIDs never do. Records share the objects of the tables and must not be changed in place.

In k parts, part p makes the records whose index is p mod k: the same records as without parts, each in one of them.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, Literal, TypeAlias
from uuid import UUID

from pydantic import Field

from headgate.connectors.api import (
    Backlog,
    Batch,
    Connector,
    Context,
    Options,
    Position,
    ReaderKind,
    SourceKind,
    identity,
)
from headgate.connectors.moves import tell_numbers
from headgate.errors import Cause, ConnectorError, EndOfStream
from headgate.text import counted

Kind: TypeAlias = Literal["sequence", "int", "float", "bool", "word", "text", "name", "email", "uuid", "time", "now"]

Column: TypeAlias = Callable[[int, int, float], Iterable[Any]]
"""The values of one field: from (number of the first record in its part, how many records, present Unix time)."""

TICK_S = 0.01  # A fast stream wakes this often and makes all that is due, instead of waking for every record.
TABLE_LENGTH = 4093  # Prime, long enough to look varied, short enough to stay in the processor's cache.
FIRST_TIME = datetime(2025, 1, 1, tzinfo=UTC)  # The kind `time` begins here and advances by a second per record.

FIRST_NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "Hedy", "Ken", "Leslie", "Radia", "Tim")
LAST_NAMES = ("Allen", "Hamilton", "Hopper", "Kay", "Lamarr", "Lamport", "Liskov", "Lovelace", "Perlman", "Turing")
ORDER_KINDS = ("order", "order", "order", "return", "quote", "refund")
WORDS = ("basin", "canal", "delta", "eddy", "flume", "gate", "inlet", "lagoon", "pond", "quay", "sluice", "weir")


class GeneratorOptions(Options):
    """What to make, and how fast."""

    rate: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Records per second; as fast as the sink takes them if absent."
    )
    count: int | None = Field(None, ge=0, description="How many records there are in all; endless if absent.")
    batch: int = Field(5000, ge=1, le=100_000, description="The most records in one batch.")
    seed: int = identity(0, description="Another seed makes other records.")
    fields: dict[str, Kind | list[Any]] | None = identity(
        None, description="Field → kind, or field → list of values to choose from; a plausible order if absent."
    )
    parts: int | None = identity(
        None,
        is_new=True,
        ge=1,
        le=1000,
        description="Parts that can be read apart, named from 0 on; read as a whole if absent.",
    )


@dataclass(frozen=True, slots=True)
class Stride:
    """The indexes of one part: `first`, and every `step`-th after it."""

    first: int = 0
    step: int = 1

    def at(self, number: int) -> int:
        """The index of a record, from its number in the part."""
        return self.first + number * self.step

    def indexes(self, first: int, number: int) -> range:
        """The indexes of `number` records, from this one on."""
        return range(self.at(first), self.at(first + number), self.step)

    def of(self, table: list[Any]) -> list[Any]:
        """The part's own table. It repeats after the same length."""
        length = len(table)
        return table if self == ALL else [table[self.at(number) % length] for number in range(length)]


ALL = Stride()


class Generator:
    """The source, or one part of it. Its position is the index of the last record made."""

    def __init__(self, options: GeneratorOptions, context: Context) -> None:
        self._options = options
        self._now_s = context.now_s
        self._part = context.part
        self._stride = stride = _stride(options.parts, context.part)
        self._make = (
            _orders(options.seed, stride) if options.fields is None else _records(options.seed, options.fields, stride)
        )
        self._rate = options.rate and options.rate / stride.step  # All parts together keep the rate.
        self._count = None if options.count is None else len(range(stride.first, options.count, stride.step))
        self._next = 0  # The number, in the part, of the record to make next.
        self._opened_with = 0  # The number that the pace counts from,
        self._opened_at_s = 0.0  # and when, on the loop's clock.

    async def check(self) -> None:
        """There is nothing that could be missing."""

    async def parts(self) -> Sequence[str]:
        return [""] if self._options.parts is None else [str(part) for part in range(self._options.parts)]

    async def open(self, position: Position) -> None:
        if self._options.parts is not None and not self._part:
            raise ConnectorError("this generator is read in parts")
        first, step = self._stride.first, self._stride.step
        if position is not None and (type(position) is not int or position < 0):
            raise ConnectorError(f"position {position!r} is not the index of a record", cause=Cause.CONFIG)
        if position is not None and position % step != first:
            raise ConnectorError(f"record {position} does not belong to part {self._part}", cause=Cause.CONFIG)
        self._next = self._opened_with = 0 if position is None else position // step + 1
        self._opened_at_s = asyncio.get_running_loop().time()

    async def read(self) -> Batch:
        options = self._options
        most = options.batch if self._count is None else min(options.batch, self._count - self._next)
        if most <= 0:
            raise EndOfStream(f"all {counted(options.count or 0, 'record')} made")
        # Without this pause an unlimited stream into a sink that never waits would block the event loop.
        number = await asyncio.sleep(0, most) if self._rate is None else await self._due(self._rate, most)
        now_s = self._now_s()
        records = self._make(self._next, number, now_s)
        self._next += number
        stride, first = self._stride, self._next - number
        return Batch(
            records,
            position=stride.at(self._next - 1),
            event_time_s=now_s,
            place=lambda index: f"record {stride.at(first + index)}",
        )

    async def _due(self, rate: float, most: int) -> int:
        """Wait until a tick's worth of records is due, and say how many are.

        The first is due one interval after opening, so that a stream that is opened often is never faster than its
        rate. All due times are counted from there: a late wake-up makes one batch larger and moves nothing.
        """
        clock = asyncio.get_running_loop().time
        made = self._next - self._opened_with
        wanted = min(most, max(1, math.floor(rate * TICK_S)))
        due_at_s = self._opened_at_s + (made + wanted) / rate
        await asyncio.sleep(max(0.0, due_at_s - clock()))
        due = math.floor((clock() - self._opened_at_s) * rate) - made
        return max(wanted, min(most, due))

    async def backlog(self) -> Backlog | None:
        """What is due, or all that is left where there is no pace; an endless one without a pace has no end to name."""
        left = None if self._count is None else max(0, self._count - self._next)
        if self._rate is None:
            return None if left is None else Backlog(left)
        passed_s = asyncio.get_running_loop().time() - self._opened_at_s
        due = max(0, math.floor(passed_s * self._rate) - (self._next - self._opened_with))
        return Backlog(due if left is None else min(due, left))

    async def ack(self, position: Position) -> None:
        """Nothing is kept, so nothing can be released."""

    async def close(self) -> None:
        """Nothing is held."""


class _History:
    """All records of a generator that ends."""

    def __init__(self, options: GeneratorOptions) -> None:
        self.size = options.count or 0
        self._make = _orders(options.seed) if options.fields is None else _records(options.seed, options.fields, ALL)

    def query(self, offset: int, limit: int) -> list[Any]:
        return self._make(offset, max(0, min(limit, self.size - offset)), FIRST_TIME.timestamp())


Make: TypeAlias = Callable[[int, int, float], list[Any]]
"""Records: from (number of the first in its part, how many, present Unix time)."""


def _stride(parts: int | None, part: str) -> Stride:
    if parts is None or not part:
        return ALL
    if not (part.isdecimal() and int(part) < parts):
        raise ConnectorError(f"part {part!r} does not exist: the generator has {counted(parts, 'part')}")
    return Stride(int(part), parts)


@lru_cache(maxsize=16)
def _order_tables(seed: int) -> tuple[list[Any], ...]:
    """Shared by all generators of one seed."""
    draw = random.Random(f"{seed}/orders")
    kinds = [draw.choice(ORDER_KINDS) for _ in range(1021)]
    users = [_user(draw) for _ in range(2039)]
    totals = [round(draw.uniform(5, 500), 2) for _ in range(TABLE_LENGTH)]
    notes = [_text(draw) for _ in range(509)]
    return kinds, users, totals, notes


def _orders(seed: int, stride: Stride = ALL) -> Make:
    """The default records, spelled out as one dict display: several times faster than any loop over fields."""
    kinds, users, totals, notes = map(stride.of, _order_tables(seed))

    def make(first: int, number: int, now_s: float) -> list[Any]:
        rows = zip(
            stride.indexes(first, number),
            _around(kinds, first, number),
            _around(users, first, number),
            _around(totals, first, number),
            _around(notes, first, number),
            strict=True,
        )
        return [
            {"id": id, "kind": kind, "user": user, "total": total, "ts": now_s, "note": note}
            for id, kind, user, total, note in rows
        ]

    return make


def _records(seed: int, fields: dict[str, Kind | list[Any]], stride: Stride = ALL) -> Make:
    """Records of the fields that were asked for."""
    names = tuple(fields)
    columns = [_column(kind, f"{seed}/{name}", stride) for name, kind in fields.items()]

    def make(first: int, number: int, now_s: float) -> list[Any]:
        if not columns:
            return [{} for _ in range(number)]
        rows = zip(*(column(first, number, now_s) for column in columns), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    return make


def _column(kind: Kind | list[Any], seed: str, stride: Stride) -> Column:
    """How to make the values of one field."""
    if isinstance(kind, list):
        return _table(lambda draw: draw.choice(kind) if kind else None, seed, stride)
    match kind:
        case "sequence":
            return lambda first, number, now_s: stride.indexes(first, number)
        case "uuid":
            return lambda first, number, now_s: [_uuid(seed, i) for i in stride.indexes(first, number)]
        case "time":
            return lambda first, number, now_s: [_time(i) for i in stride.indexes(first, number)]
        case "now":
            return lambda first, number, now_s: [now_s] * number
        case _:
            return _table(DRAWS[kind], seed, stride)


def _table(value: Callable[[random.Random], Any], seed: str, stride: Stride) -> Column:
    draw = random.Random(seed)
    table = stride.of([value(draw) for _ in range(TABLE_LENGTH)])
    return lambda first, number, now_s: _around(table, first, number)


def _around(table: list[Any], first: int, number: int) -> list[Any]:
    """A stretch of the table, which begins again where it ends."""
    start = first % len(table)
    if start + number > len(table):
        table = table * (number // len(table) + 2)
    return table[start : start + number]


def _text(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(3, 9))).capitalize()


def _user(draw: random.Random) -> dict[str, str]:
    name = f"{draw.choice(FIRST_NAMES)} {draw.choice(LAST_NAMES)}"
    return {"name": name, "email": f"{name.lower().replace(' ', '.')}{draw.randrange(1000)}@example.com"}


def _uuid(seed: str, index: int) -> str:
    return str(UUID(bytes=blake2b(f"{seed}/{index}".encode(), digest_size=16).digest(), version=4))


def _time(index: int) -> str:
    return (FIRST_TIME + timedelta(seconds=index)).isoformat()


DRAWS: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda draw: draw.randrange(1_000_000),
    "float": lambda draw: round(draw.uniform(0, 1000), 3),
    "bool": lambda draw: draw.random() < 0.5,
    "word": lambda draw: draw.choice(WORDS),
    "text": _text,
    "name": lambda draw: _user(draw)["name"],
    "email": lambda draw: _user(draw)["email"],
}

CONNECTOR = Connector(
    name="generator",
    summary="Makes records, paced or as fast as possible",
    source=SourceKind(
        options=GeneratorOptions,
        build=Generator,
        knows_backlog=True,
        in_parts=True,
        tell_move=partial(tell_numbers, noun="record"),
        promise="exactly once into a transactional sink",
    ),
    reader=ReaderKind(of_source=lambda options: None if options.count is None else _History(options)),
)
