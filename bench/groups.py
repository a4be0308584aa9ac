"""Groups of programs: commands per second with 1, 1,000 and 100,000 groups present.

    python -m bench.groups

What a program does makes one command: the group's row locked, the pure machine stepped, the rows saved. Commands that
come while a transaction is under way go into the next one together. Every group is that of a partition and has one
member. A second one joins, the first confirms that it has stepped down, the second that it is active; then the second
leaves, and the first is active again.

One command at a time is what the sizes are compared by. Then 8 and 64 are under way, on as many different groups; with
one group there are no such figures, because only one program at a time has something to say there. Instead, 64 programs
join it and leave it, again and again, where each command looks at up to 64 others. The sizes take turns, each in a
database of its own on one server, so that whatever else the machine does meets all of them. Groups are picked by
chance; all have a full list of their last transitions, as a group that has been used for a while does. The event loop
and the garbage collector are those of a node.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

import asyncpg
import uvloop

from bench.rig import make_database, report
from headgate.core.groups.machine import Confirm, Unregister
from headgate.core.groups.requests import Answered, Joined, Request
from headgate.runtime import memory
from headgate.store.database import Database
from headgate.store.embedded import EmbeddedServer
from headgate.store.groups import LATELY, Groups
from headgate.store.migrate import migrate
from headgate.store.nodes import Nodes

SIZES = (1, 1_000, 100_000)
CYCLES = 600  # Of five commands each.
WARM_UP = 20
ROUNDS = 6
UNDER_WAY = (8, 64)
CYCLES_EACH = 10  # Of one of those that are under way, in a round.
LOOKS = 20
PARTITION = 1  # Of two members the second is wanted.

# Copies of the first group and its member, whatever columns they have.
COPY_GROUPS = """
INSERT INTO headgate.consumer_group
SELECT (jsonb_populate_record(g, jsonb_build_object(
    'id', gen_random_uuid(), 'stream', 'stream-' || i, 'granted_to', gen_random_uuid()))).*
FROM headgate.consumer_group g, generate_series(2, $1::integer) i
"""
COPY_MEMBERS = """
INSERT INTO headgate.consumer
SELECT (jsonb_populate_record(c, jsonb_build_object('id', g.granted_to, 'group', g.id))).*
FROM headgate.consumer c, headgate.consumer_group g WHERE g.id <> c."group"
"""
CROWD = "crowd"  # The group that many join and leave; nobody is in it at the end.
SPOILT = f"""
SELECT count(*) FROM headgate.consumer_group g
WHERE g.stream <> '{CROWD}' AND
NOT EXISTS (SELECT FROM headgate.consumer c WHERE c.id = g.granted_to AND c.label = 'first' AND c.epoch = g.epoch)
"""


class House:
    """A database with so many groups."""

    def __init__(self, database: Database, node: UUID) -> None:
        self.groups = Groups(database)
        self._database = database
        self._node = node
        self._rows: list[Any] = []
        self._epochs: dict[UUID, int] = {}

    @classmethod
    async def build(cls, url: str, size: int) -> Self:
        """One group is made by its commands, the others are copies of it, straight in the tables."""
        database, node = await Database.open(url), uuid4()
        await migrate(database)
        await Nodes(database).join(node, "bench", 3600, None)
        house = cls(database, node)
        first = await house.join("stream-1", "first")
        await house.apply(first.group, Answered(first.consumer, 1))
        entry = {"at": "2026-01-01T00:00:00.000+00:00", "what": "register", "who": "first", "told": [["active", "", 1]]}
        connection = await asyncpg.connect(url)
        await connection.execute("UPDATE headgate.consumer_group SET lately = $1", json.dumps([entry] * LATELY))
        await connection.execute(COPY_GROUPS, size)
        await connection.execute(COPY_MEMBERS)
        await connection.execute("VACUUM ANALYZE headgate.consumer_group, headgate.consumer")
        house._rows = await connection.fetch("SELECT id, stream, granted_to FROM headgate.consumer_group")
        await connection.close()
        return house

    async def join(self, stream: str, label: str) -> Joined:
        """A consumer joins."""
        joined = await self.groups.join(stream, "bench", PARTITION, label, self._node, 10)
        assert isinstance(joined, Joined)
        return joined

    async def apply(self, group: UUID, request: Request) -> None:
        """One command."""
        await self.groups.apply({group: [request]})

    def pick(self, number: int) -> list[Any]:
        """Groups by chance; each once, if there are so many."""
        return random.sample(self._rows, number) if len(self._rows) >= number else random.choices(self._rows, k=number)

    async def cycle(self, row: Any, spent: dict[str, float]) -> None:
        """The five commands, on one group."""
        group, first, epoch = row["id"], row["granted_to"], self._epochs.get(row["id"], 1)
        began = time.perf_counter()

        def done(verb: str) -> None:
            nonlocal began
            now = time.perf_counter()
            spent[verb] = spent.get(verb, 0.0) + now - began
            began = now

        second = (await self.join(row["stream"], "second")).consumer
        done("join")
        await self.apply(group, Confirm(str(first), epoch))
        done("confirm step-down")
        await self.apply(group, Answered(second, epoch + 1))
        done("confirm active")
        await self.apply(group, Unregister(str(second)))
        done("leave")
        await self.apply(group, Answered(first, epoch + 2))
        done("confirm active")
        self._epochs[group] = epoch + 2

    async def look(self) -> float:
        """Milliseconds for what every node asks once a second, when there is nothing to do."""
        began = time.perf_counter()
        await self.groups.strand()
        await self.groups.silent()
        await self.groups.orders(self._node)
        return 1000 * (time.perf_counter() - began)

    async def close(self) -> None:
        """Every group must be as it was, but for its epoch."""
        assert await self._database.fetchval(SPOILT) == 0
        await self._database.close()


async def one_at_a_time(houses: dict[int, House]) -> dict[int, dict[str, float]]:
    """Commands per second of each size, by kind. The sizes take turns, one cycle each."""
    spent: dict[int, dict[str, float]] = {size: {} for size in houses}
    picked = {size: house.pick(CYCLES) for size, house in houses.items()}
    for number in range(-WARM_UP, CYCLES):
        for size in random.sample(SIZES, len(SIZES)):
            await houses[size].cycle(picked[size][number], spent[size] if number >= 0 else {})
    return {
        size: {verb: CYCLES * (1 + (verb == "confirm active")) / seconds for verb, seconds in by.items()}
        for size, by in spent.items()
    }


async def side_by_side(house: House, under_way: int) -> float:
    """Commands per second with so many under way."""
    left = house.pick(CYCLES_EACH * under_way)
    count = 5 * len(left)

    async def lane() -> None:
        while left:
            await house.cycle(left.pop(), {})

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(under_way)))
    return count / (time.perf_counter() - began)


async def in_one_group(house: House, programs: int) -> float:
    """Commands per second of so many programs that join one group and leave it."""

    async def lane() -> None:
        for _ in range(CYCLES_EACH):
            joined = await house.join(CROWD, "one of many")
            await house.apply(joined.group, Unregister(str(joined.consumer)))

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(programs)))
    return 2 * CYCLES_EACH * programs / (time.perf_counter() - began)


async def measure(url: str) -> dict[int, dict[str, float]]:
    """Of each size: what was measured."""
    houses = {}
    for size in SIZES:
        houses[size] = await House.build(await make_database(url, f"groups_{size}"), size)
    memory.settle()
    found = await one_at_a_time(houses)
    rates: dict[tuple[int, int], list[float]] = {(size, many): [] for size in SIZES[1:] for many in UNDER_WAY}
    crowd: list[float] = []
    for _ in range(ROUNDS):
        for (size, many), of in rates.items():
            of.append(await side_by_side(houses[size], many))
        crowd.append(await in_one_group(houses[1], UNDER_WAY[-1]))
    for (size, many), of in rates.items():
        found[size][f"{many} under way"] = statistics.median(of)
    found[1]["crowd"] = statistics.median(crowd)
    for size, house in houses.items():
        found[size]["look"] = statistics.median([await house.look() for _ in range(LOOKS)])
        await house.close()
    return found


def main() -> dict[str, Any]:
    """Measure, print, return."""
    with tempfile.TemporaryDirectory(prefix="hgb") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        server = EmbeddedServer.join(home)
        try:
            found = uvloop.run(measure(server.url))
        finally:
            server.leave()
    figures: dict[str, Any] = {}
    verbs = [verb for verb in found[SIZES[-1]] if verb != "look"]
    for verb in verbs:
        rates = {size: found[size][verb] for size in SIZES if verb in found[size]}
        for size, rate in rates.items():
            figures[f"{verb}, {size:,} group{'s' * (size > 1)}, per second"] = rate
        figures[f"{verb}, dearest over cheapest size"] = max(rates.values()) / min(rates.values())
    figures[f"{UNDER_WAY[-1]} programs join and leave one group, per second"] = found[1]["crowd"]
    for size in SIZES:
        figures[f"a look that finds nothing, {size:,} group{'s' * (size > 1)}, ms"] = found[size]["look"]
    return report("Groups: join, confirm and leave (python -m bench.groups)", figures)


if __name__ == "__main__":
    main()
