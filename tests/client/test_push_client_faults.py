"""Clients against nodes that fail at random: what becomes durable is what was pushed, once and in order.

The nodes keep one ledger, as nodes keep one database. They hold the client to the protocol, and whatever they may do
to it they do: cut, refuse, restart, move, grant elsewhere, and make durable as little as they like. A seed that fails
is the test's parameter.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from scripted_node import Peer, ScriptedNode, scripted_node
from websockets.exceptions import ConnectionClosed

from headgate.client import PushClient, PushStream, session
from headgate.core import backoff
from headgate.core.frames import (
    AckFrame,
    ClosedFrame,
    EosFrame,
    MessagesFrame,
    NotifyAckFrame,
    NotifyFrame,
    RestartFrame,
)

RECORDS = 400
STREAMS = ("one", "two", "three")
BARRIER_S = 0.002
FAULTS = 40  # Then they let it come to an end.


@dataclass
class Ledger:
    """What is durable, and who has which stream."""

    chance: random.Random
    urls: list[str] = field(default_factory=list)
    durable: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    owners: dict[str, Dealings] = field(default_factory=dict)
    faults: int = FAULTS

    def happens(self, probability: float) -> bool:
        """Whether something goes wrong now."""
        if not self.faults or self.chance.random() >= probability:
            return False
        self.faults -= 1
        return True


class Dealings:
    """One node's side of one connection."""

    def __init__(self, peer: Peer, ledger: Ledger) -> None:
        self.peer = peer
        self.ledger = ledger
        self.credits = ledger.chance.choice([1, 7, 100, 5000])
        self.granted: dict[str, int] = {}  # And the last id that came in.
        self.pending: dict[str, list[int]] = defaultdict(list)

    async def deal(self) -> None:
        ledger = self.ledger
        await self.peer.welcome(
            credits=self.credits, max_frame=ledger.chance.choice([300, 5000, 100_000]), nodes=ledger.urls
        )
        barriers = asyncio.create_task(self.make_durable())
        try:
            while not ledger.happens(0.03):
                await self.handle()
            self.peer.cut()
        except ConnectionClosed:
            pass
        finally:
            barriers.cancel()
            for stream in self.granted:
                if ledger.owners.get(stream) is self:
                    del ledger.owners[stream]

    async def make_durable(self) -> None:
        """Whatever chance has left behind, a little later."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(BARRIER_S)
                for stream in self.granted:
                    self.commit(stream, len(self.pending[stream]))
                await self.give(0, list(self.granted))

    async def handle(self) -> None:
        match await self.peer.hear():
            case NotifyFrame(stream=stream):
                await self.notified(stream)
            case MessagesFrame(stream=stream, messages=messages):
                await self.received(stream, [message.id for message in messages])
            case EosFrame(stream=stream):
                await self.ended(stream)
            case other:
                raise AssertionError(other)

    async def notified(self, stream: str) -> None:
        assert stream not in self.granted
        ledger = self.ledger
        if ledger.owners.get(stream) or ledger.happens(0.1):
            await self.peer.say(NotifyAckFrame(stream, accepted=False, reason="owned", retry_after_ms=1))
            return
        ledger.owners[stream] = self
        position = ledger.durable[stream][-1] if ledger.durable[stream] else None
        self.granted[stream] = -1
        self.pending[stream] = []
        await self.peer.say(NotifyAckFrame(stream, accepted=True, position=position, epoch=1))

    async def received(self, stream: str, ids: list[int]) -> None:
        """As much of it becomes durable as chance will have; the credits of it, or of what was dropped, go back."""
        assert 0 < len(ids) <= self.credits, "credits were overdrawn"
        self.credits -= len(ids)
        if stream not in self.granted:  # It crossed a restart.
            await self.give(len(ids), [])
            return
        assert ids == sorted(set(ids))
        assert ids[0] > self.granted[stream], "ids went backwards"
        self.granted[stream] = ids[-1]
        durable = self.ledger.durable[stream]
        self.pending[stream] += [id for id in ids if not durable or id > durable[-1]]
        if self.ledger.happens(0.05):
            del self.granted[stream]
            del self.ledger.owners[stream]
            await self.peer.say(RestartFrame(stream, reason="chance"))
        elif self.ledger.happens(0.02):
            await self.peer.say(RestartFrame(None, self.ledger.chance.choice(self.ledger.urls), "chance"))
        else:
            self.commit(stream, self.ledger.chance.randint(0, len(self.pending[stream])))
            if self.ledger.chance.random() < 0.5:
                self.commit(stream, len(self.pending[stream]))
        await self.give(len(ids), [stream])

    def commit(self, stream: str, records: int) -> None:
        self.ledger.durable[stream] += self.pending[stream][:records]
        del self.pending[stream][:records]

    async def give(self, credits: int, streams: list[str]) -> None:
        self.credits += credits
        positions = [(name, self.ledger.durable[name][-1]) for name in streams if self.ledger.durable[name]]
        await self.peer.say(AckFrame(credits, list(positions)))

    async def ended(self, stream: str) -> None:
        if stream not in self.granted:
            return  # It crossed a restart.
        self.commit(stream, len(self.pending[stream]))
        del self.granted[stream]
        del self.ledger.owners[stream]
        if not self.ledger.happens(0.3):
            durable = self.ledger.durable[stream]
            await self.peer.say(ClosedFrame(stream, durable[-1] if durable else None))
        else:
            self.peer.cut()


async def keep(node: ScriptedNode, ledger: Ledger, tasks: asyncio.TaskGroup) -> None:
    while True:
        tasks.create_task(Dealings(await node.wait_for_peer(), ledger).deal())


async def push(stream: PushStream, chance: random.Random) -> int | None:
    """Everything, in pieces of any size; then the end."""
    first = 0
    while first < RECORDS:
        last = min(RECORDS, first + chance.randint(1, 90))
        await stream.send_many((id, b"x" * chance.randint(0, 200)) for id in range(first, last))
        first = last
        if chance.random() < 0.3:
            await stream.flush()
    return await stream.finish()


@pytest.mark.parametrize("seed", range(12))
async def test_everything_becomes_durable_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_S", 0.001)
    monkeypatch.setattr(backoff, "LONGEST_S", 0.002)
    monkeypatch.setattr(session, "ASK_AGAIN_S", 0.001)
    chance = random.Random(seed)
    ledger = Ledger(chance)
    async with scripted_node() as one, scripted_node() as two, asyncio.TaskGroup() as tasks:
        ledger.urls = [one.url, two.url]
        keepers = [tasks.create_task(keep(node, ledger, tasks)) for node in (one, two)]
        async with PushClient(ledger.urls, datasource="clicks", buffer=chance.choice([3, 50, 100_000])) as client:
            streams = [await client.stream(name) for name in STREAMS]
            ends = await asyncio.gather(*(push(stream, chance) for stream in streams))
        for keeper in keepers:
            keeper.cancel()
    assert ends == [RECORDS - 1] * len(STREAMS)
    assert ledger.durable == {name: list(range(RECORDS)) for name in STREAMS}
