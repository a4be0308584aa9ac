"""Those who send records from outside: callers of webhooks, programs that push, and a writer of files.

Each knows what it has sent, and what it was told about it. They have no other way to know what becomes of a record, and
go on whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from typing import Protocol

import httpx

from headgate.client import PushClient
from headgate.client.stream import PushStream
from tests.storm.accounting import Fate
from tests.storm.workload import Datasource

EVERY_S = 0.3  # Between two records of one sender, on average.
CALL_S = 5.0  # A call that is not answered by then is left.
BUFFER = 1000  # Records of a program that are not durable; it waits when there are more.
LINES_PER_FILE = 200


class Door(Protocol):
    """Where nodes are reached."""

    token: str

    def urls(self) -> list[str]:
        """Of all nodes, those that are down among them."""


class Sender:
    """One lane: its last record, and the fate of each."""

    def __init__(self, datasource: Datasource, lane: int, chance: random.Random) -> None:
        self.datasource = datasource
        self.lane = lane
        self.chance = chance
        self.last = -1  # The last record that was sent.
        self.is_ending = False

    @property
    def name(self) -> str:
        return f"{self.datasource.name}/{self.lane}"

    def fate(self, id: int) -> Fate:
        return self.datasource.fate(id)

    async def run(self) -> None:
        """Send until it is told to end."""
        while not self.is_ending:
            await self.send()
            await asyncio.sleep(self.chance.uniform(0.0, 2 * EVERY_S))

    async def send(self) -> None:
        raise NotImplementedError

    def payload(self) -> bytes:
        return self.datasource.payload(self.lane, self.last)


class Caller(Sender):
    """Calls a webhook, one call at a time, on any node. What was not answered 202 is not sent again: that would be a
    second payload."""

    def __init__(self, datasource: Datasource, lane: int, chance: random.Random, door: Door) -> None:
        super().__init__(datasource, lane, chance)
        self.answered = 0
        self._door = door
        self._untold: set[int] = set()
        self._client = httpx.AsyncClient(timeout=CALL_S)

    def fate(self, id: int) -> Fate:
        return Fate.PERHAPS if id in self._untold else super().fate(id)

    async def run(self) -> None:
        async with self._client:
            await super().run()

    async def send(self) -> None:
        """One call. Until it is answered, nothing is known of it."""
        self.last += 1
        self._untold.add(self.last)
        url = f"{self.chance.choice(self._door.urls())}/hooks/{self.datasource.name}"
        headers = {"Authorization": f"Bearer {self._door.token}"}
        with contextlib.suppress(httpx.HTTPError):
            answer = await self._client.post(url, content=self.payload(), headers=headers)
            if answer.status_code == 202:
                self._untold.discard(self.last)
                self.answered += 1


class Killed(Exception):
    """A program ends without a word."""


class Program(Sender):
    """Pushes one stream. When it is killed, it begins again where the node says that the stream stands."""

    def __init__(self, datasource: Datasource, lane: int, chance: random.Random, door: Door) -> None:
        super().__init__(datasource, lane, chance)
        self.final: int | None = None  # The last position, once the stream has ended.
        self._door = door
        self._stream: PushStream | None = None
        self._is_killed = False

    @property
    def acked(self) -> int:
        """The last record that the program was told is durable."""
        position = self._stream.position if self._stream else None
        return -1 if position is None else position

    def kill(self) -> None:
        """Lose what is not durable, and begin again."""
        self._is_killed = True

    async def run(self) -> None:
        while self.final is None:
            with contextlib.suppress(Killed):
                await self._push()

    async def _push(self) -> None:
        urls = self._door.urls()
        self.chance.shuffle(urls)
        name, token = self.datasource.name, self._door.token
        async with PushClient(urls, datasource=name, token=token, program=self.name, buffer=BUFFER) as client:
            stream = self._stream = await client.stream(f"lane-{self.lane}")
            next_id = self.acked + 1
            while not self.is_ending:
                for _ in range(self.chance.choice((1, 1, 1, 20))):
                    await stream.send(next_id, self.datasource.payload(self.lane, next_id))
                    self.last = max(self.last, next_id)
                    next_id += 1
                await asyncio.sleep(self.chance.uniform(0.0, 2 * EVERY_S))
                if self._is_killed:
                    self._is_killed = False
                    raise Killed
            self.final = await stream.finish()


class Writer(Sender):
    """Appends lines to files, some at a time, now and then half a line; each file has a later name than the last."""

    async def send(self) -> None:
        """Some lines, in one piece or in two."""
        for _ in range(self.chance.choice((1, 1, 3, 20))):
            self.last += 1
            line = self.payload() + b"\n"
            cut = self.chance.randrange(len(line))
            file = self.datasource.incoming / f"{self.last // LINES_PER_FILE:06}.jsonl"
            descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line[:cut])
                if self.chance.random() < 0.1:
                    await asyncio.sleep(EVERY_S)
                os.write(descriptor, line[cut:])
            finally:
                os.close(descriptor)


def senders_of(datasource: Datasource, chance: random.Random, door: Door) -> list[Sender]:
    """Whoever sends to this one."""
    match datasource.kind:
        case "hooks":
            return [Caller(datasource, 0, chance, door)]
        case "push":
            return [Program(datasource, lane, random.Random(chance.random()), door) for lane in range(datasource.lanes)]
        case "lines" | "pass":
            return [Writer(datasource, 0, chance)]
        case _:
            return []
