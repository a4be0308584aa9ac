"""What happens now is read once for all who follow it: each gets what fits, once and in order, from where it stands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from headgate.errors import StoreError
from headgate.web import feeds, sse
from headgate.web.feeds import Feed
from tests.waiting import until


class Shown(msgspec.Struct):
    id: int
    name: str


@dataclass(frozen=True)
class Row:
    id: int
    name: str = ""


@dataclass
class Table:
    """Rows that a test appends, and who has asked for them."""

    rows: list[Row] = field(default_factory=list)
    asked: int = 0  # By the feed.
    pasts: int = 0  # By followers.
    fails: bool = False
    calls: list[Callable[[int], None]] = field(default_factory=list)
    most: int = 3  # Rows of one reading.

    def put(self, *names: str) -> None:
        for name in names:
            self.rows.append(Row(len(self.rows) + 1, name))
        for call in list(self.calls):
            call(0)

    async def last(self) -> int:
        if self.fails:
            raise StoreError("away")
        return len(self.rows)

    async def read(self, after: int) -> list[Row]:
        self.asked += 1
        if self.fails:
            raise StoreError("away")
        return self.rows[after : after + self.most]

    async def past(self, after: int) -> list[Row]:
        self.pasts += 1
        if self.fails:
            raise StoreError("away")
        return self.rows[after : after + self.most]

    def hear(self, call: Callable[[int], None]) -> Callable[[], None]:
        self.calls.append(call)
        return lambda: self.calls.remove(call)

    def feed(self, every_s: float = 0.02, least_s: float = 0.001) -> Feed[Row]:
        return Feed(self.last, self.read, lambda row: Shown(row.id, row.name), self.hear, every_s, least_s)


def anything(row: Row) -> bool:
    return True


async def taken(events: AsyncIterator[bytes], number: int) -> list[str]:
    """This many names, whatever signs of life there are between them."""
    found: list[str] = []
    while len(found) < number:
        if (event := await anext(events)) != sse.ALIVE:
            id, data = event.decode().strip().split("\r\n")
            said: dict[str, Any] = json.loads(data.removeprefix("data: "))
            assert id == f"id: {said['id']}"
            found.append(said["name"])
    return found


async def test_fifty_who_follow_cost_one_reading_a_turn() -> None:
    table = Table()
    table.put("before")
    feed = table.feed(every_s=3600.0)

    async def follow() -> list[str]:
        async with aclosing(feed.follow(1, table.past, anything)) as events:
            assert await anext(events) == sse.ALIVE
            return await taken(events, 2)

    following = [asyncio.ensure_future(follow()) for _ in range(50)]
    await until(lambda: feed._from is not None and feed._followers == 50)
    asked, pasts = table.asked, table.pasts
    table.put("one", "two")
    assert await asyncio.gather(*following) == [["one", "two"]] * 50
    assert table.asked <= asked + 4
    assert table.pasts == pasts <= 50


async def test_what_does_not_fit_is_not_sent_to_who_may_not_see_it() -> None:
    table = Table()
    feed = table.feed()
    mine = feed.follow(0, table.past, lambda row: row.name.startswith("mine"))
    async with aclosing(mine) as some, aclosing(feed.follow(0, table.past, anything)) as all_of_it:
        for events in (some, all_of_it):
            assert await anext(events) == sse.ALIVE
        table.put("mine 1", "others 1", "others 2", "mine 2", "others 3", "mine 3")
        assert await taken(all_of_it, 6) == ["mine 1", "others 1", "others 2", "mine 2", "others 3", "mine 3"]
        assert await taken(some, 3) == ["mine 1", "mine 2", "mine 3"]


async def test_who_comes_back_reads_what_was_missed_and_then_what_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MOST_KEPT", 4)
    table = Table()
    feed = table.feed()
    async with aclosing(feed.follow(0, table.past, anything)) as early:
        assert await anext(early) == sse.ALIVE
        await until(lambda: feed._from == 0)
        table.put(*(str(number) for number in range(1, 21)))
        assert await taken(early, 20) == [str(number) for number in range(1, 21)]
        await until(lambda: feed._from == 16)
        async with aclosing(feed.follow(5, table.past, anything)) as late:
            assert await taken(late, 15) == [str(number) for number in range(6, 21)]
            pasts = table.pasts
            table.put("21")
            assert (await taken(late, 1), await taken(early, 1)) == (["21"], ["21"])
            assert table.pasts == pasts


async def test_in_any_order_of_reading_and_writing_each_gets_each_row_once() -> None:
    table = Table()
    feed = table.feed(every_s=0.002, least_s=0.0)
    names = [str(number) for number in range(300)]

    async def follow(pause_s: float) -> list[str]:
        async with aclosing(feed.follow(0, table.past, anything)) as events:
            found = []
            while len(found) < len(names):
                found += await taken(events, 1)
                await asyncio.sleep(pause_s if len(found) % 7 == 0 else 0)
            return found

    following = [asyncio.ensure_future(follow(pause_s)) for pause_s in (0.0, 0.001, 0.003)]
    for begin in range(0, len(names), 5):
        table.put(*names[begin : begin + 5])
        await asyncio.sleep(0.001 if begin % 3 else 0)
        if begin % 50 == 0:
            following.append(asyncio.ensure_future(follow(0.0)))
    assert await asyncio.gather(*following) == [names] * len(following)


async def test_while_the_database_is_away_there_are_signs_of_life_and_then_all_that_was_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "ALIVE_S", 0.005)
    table = Table(fails=True)
    feed = table.feed()
    async with aclosing(feed.follow(0, table.past, anything)) as events:
        assert [await anext(events) for _ in range(3)] == [sse.ALIVE] * 3
        table.fails = False
        table.put("one")
        assert await taken(events, 1) == ["one"]
        table.fails = True
        table.put("two")
        assert [await anext(events) for _ in range(3)] == [sse.ALIVE] * 3
        table.fails = False
        assert await taken(events, 1) == ["two"]


async def test_what_nobody_follows_is_not_read_and_keeps_nothing() -> None:
    table = Table()
    feed = table.feed()
    async with aclosing(feed.follow(0, table.past, anything)) as events:
        assert await anext(events) == sse.ALIVE
        table.put("one")
        assert await taken(events, 1) == ["one"]
    await until(lambda: not feed.is_followed)
    assert (table.calls, list(feed._kept)) == ([], [])
    asked = table.asked
    table.put("two")
    await asyncio.sleep(0.05)
    assert table.asked == asked
    async with aclosing(feed.follow(1, table.past, anything)) as events:
        assert await taken(events, 1) == ["two"]
