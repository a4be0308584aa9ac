"""Many sessions of one node at random moments: opened, closed, swapped, stopped, drained, robbed and cut off.

The sessions are driven without sockets, so that everything happens in as few turns of the loop as possible. Whatever
the order was, in the end no row has an owner, nothing is left on the node, what was acked is in the table, and each
record is there once. A seed that fails is replayed by its number.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headgate.core import backoff
from headgate.core.push.notifier import Reason
from headgate.runtime.push import listener as push
from headgate.runtime.push.feed import Piece
from headgate.runtime.push.session import Peer, Session
from tests.waiting import LONG_S
from tests.web.pushing import House, house

STREAMS = [f"s{n}" for n in range(5)]


class Puppet(Peer):
    """A program without a socket: it keeps what it is told."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self.credits = 0
        self.failure: str | None = None

    def accepted(self, stream: str, epoch: int, position: int | None) -> None:
        """It may push."""
        self.heard.put_nowait(("accepted", stream, position))

    def refused(self, stream: str, reason: Reason, retry_after_ms: int) -> None:
        """It may not."""
        self.heard.put_nowait(("refused", stream, reason))

    def acked(self, credits: int, positions: list[tuple[str, int | None]]) -> None:
        """So much is durable."""
        self.credits += credits
        self.heard.put_nowait(("acked", positions))

    def closed(self, stream: str, position: int | None) -> None:
        """The end is durable."""
        self.heard.put_nowait(("closed", stream, position))

    def restart(self, stream: str | None, address: str | None, reason: str) -> None:
        """Ask again."""
        self.heard.put_nowait(("restart", stream, reason))

    def fail(self, code: str, text: str) -> None:
        """It is over."""
        self.failure = self.failure or code
        self.heard.put_nowait(("failed", code))


class Life:
    """One session, from its first stream to its end, whatever that is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.dice
        self._puppet = Puppet()
        self._session: Session = world.here.node.push.open(self._puppet, world.datasource)
        self._next: dict[str, int] = {}  # The next id of each stream that it has.
        self._ended: dict[str, int] = {}
        self._sent = 0

    async def live(self) -> None:
        """Do whatever comes to mind."""
        try:
            for stream in self._dice.sample(STREAMS, self._dice.randint(1, 3)):
                self._session.notify(stream, stream)
            for _ in range(self._dice.randint(1, 15)):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._dice.random() * 0.03):
                        self._hear(await self._puppet.heard.get())
                if self._puppet.failure is not None:
                    return
                self._act()
                assert self._puppet.credits <= self._sent, "a credit was given twice"
        finally:
            self._session.close()

    def _act(self) -> None:
        open_streams = [stream for stream in self._next if stream not in self._ended]
        if not open_streams:
            return
        stream = self._dice.choice(open_streams)
        if self._dice.random() < 0.15:
            self._ended[stream] = self._next[stream] - 1
            self._session.ended(stream)
            return
        ids = list(range(self._next[stream], self._next[stream] + self._dice.choice([1, 3, 200])))
        self._next[stream] = ids[-1] + 1
        self._sent += len(ids)
        records = [{"stream": stream} for _ in ids]
        self._session.received(stream, Piece(ids, records, [{"id": id} for id in ids], 0, None))

    def _hear(self, word: tuple[Any, ...]) -> None:
        acked = self._world.acked
        match word:
            case ("accepted", stream, position):
                first = 0 if position is None else position + 1
                assert first > acked[stream], "what was acked was lost"
                self._next[stream] = first
            case ("acked", positions):
                for stream, position in positions:
                    if position is not None:
                        acked[stream] = max(acked[stream], position)
            case ("closed", stream, position):
                assert self._ended.pop(stream) == (-1 if position is None else position)
                del self._next[stream]
                self._session.notify(stream, stream)
            case ("restart", str(stream), _):
                self._next.pop(stream, None)
                self._ended.pop(stream, None)
                self._session.notify(stream, stream)
            case ("failed", code):
                assert code == "not_ready"


class World:
    """One node, one datasource, and what may happen to them."""

    def __init__(self, here: House, name: str, datasource: Any, seed: int) -> None:
        self.here = here
        self.name = name
        self.datasource = datasource
        self.dice = random.Random(seed)
        self.acked: defaultdict[str, int] = defaultdict(lambda: -1)
        self.is_over = False
        self._versions = 0

    async def sessions(self) -> None:
        """One after the other."""
        while not self.is_over:
            await Life(self).live()

    async def publish(self) -> None:
        """Another version, or the first."""
        self._versions += 1
        mapping = {"set": {"id": "meta.id", "stream": "stream", "v": str(self._versions)}}
        await self.here.publish(self.name, mapping=mapping)

    async def stop(self) -> None:
        """Stop and start."""
        await self.here.node.registry.set_enabled(self.name, False, "tester")
        await asyncio.sleep(self.dice.random() * 0.05)
        await self.here.node.registry.set_enabled(self.name, True, "tester")

    async def restart(self) -> None:
        """As an operator would."""
        await self.here.node.registry.restart(self.name, "tester")

    async def drain(self) -> None:
        """Drain and change one's mind."""
        node = self.here.node
        for draining in (True, False):
            node.push.drain(draining)
            assert node.manager is not None
            node.manager.drain(draining)
            await asyncio.sleep(self.dice.random() * 0.05)

    async def spoil(self) -> None:
        """The sink cannot be written to for a while; each stream that tries is quarantined."""
        table = self.name.replace("-", "_")
        await self.here.sql(f"ALTER TABLE {table} RENAME COLUMN v TO w")
        await asyncio.sleep(self.dice.random() * 0.1)
        await self.here.sql(f"ALTER TABLE {table} RENAME COLUMN w TO v")

    async def rob(self) -> None:
        """Somebody else has taken a stream, and let go of it again."""
        query = "UPDATE headgate.stream SET owner = NULL, run = NULL, epoch = epoch + 1 WHERE label = $1"
        await self.here.sql(query, self.dice.choice(STREAMS))

    async def cut(self) -> None:
        """Every session of the database ends, but for ours."""
        await self.here.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    async def take_for_dead(self) -> None:
        """The node begins anew."""
        await self.here.node.nodes.end(self.here.node.incarnation)

    async def _is_well(self) -> bool:
        node = self.here.node
        rows = await self.here.sql("SELECT FROM headgate.node WHERE id = $1", node.incarnation)
        return len(rows) == 1 and node.trust_left_s() > 0.0

    async def _push_a_little(self) -> None:
        async with self.here.connected(self.name) as program:
            for stream in STREAMS:
                position = await program.have(stream)
                next_id = 0 if position is None else position + 1
                assert next_id > self.acked[stream]
                await program.push(stream, [next_id], f'{{"stream": "{stream}"}}'.encode())
                assert await program.end(stream) == next_id
                self.acked[stream] = next_id

    async def happen(self, kinds: list[str], times: int) -> None:
        """Some of these, at random moments."""
        for _ in range(times):
            await asyncio.sleep(self.dice.random() * 0.1)
            with suppress(Exception):  # What is cut off may be ours.
                await getattr(self, self.dice.choice(kinds))()

    async def check(self) -> None:
        """Nothing is left, everybody can have everything, nothing was lost, nothing is there twice."""
        await self.here.until(self._is_well, bool)
        await self.publish()  # A version that the spoilt sink had rejected gets another chance.
        await self.here.until_empty()
        await self._push_a_little()
        await self.here.until_empty()
        free = "SELECT label FROM headgate.stream WHERE label IS NOT NULL AND owner IS NOT NULL"
        await self.here.until(lambda: self.here.sql(free), lambda rows: not rows)
        found: defaultdict[str, list[int]] = defaultdict(list)
        table = self.name.replace("-", "_")
        for row in await self.here.sql(f"SELECT id, stream FROM {table} ORDER BY id"):
            found[row["stream"]].append(row["id"])
        for stream in STREAMS:
            assert found[stream] == list(range(self.acked[stream] + 1)), stream


@pytest.fixture
async def here(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    """A node in a hurry."""
    monkeypatch.setattr(push, "BARRIER_S", 0.01)
    monkeypatch.setattr(backoff, "FIRST_S", 0.02)
    async with house(url, tmp_path / "home") as found:
        yield found


PEACE = ["publish"]
TROUBLE = ["publish", "stop", "restart", "drain", "spoil"]
WAR = [*TROUBLE, "rob", "cut"]


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [(1, PEACE), (2, TROUBLE), (3, TROUBLE), (4, WAR), (5, WAR), (6, [*WAR, "take_for_dead"])],
)
async def test_whatever_happens_no_stream_is_left_behind_and_no_record_is_lost_or_repeated(
    here: House, seed: int, kinds: list[str]
) -> None:
    name = await here.publish()
    datasource = (await here.node.registry.get(name)).id
    world = World(here, name, datasource, seed)
    await world.publish()
    assert here.node.manager is not None
    await here.node.manager.look()
    async with asyncio.timeout(LONG_S), asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(world.sessions())
        await world.happen(kinds, times=15)
        world.is_over = True
    await world.check()
