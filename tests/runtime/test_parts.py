"""Several parts as one source: fair, patient with each of them, and exact about what was read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from headgate.connectors.api import Batch, Position
from headgate.core.parts import with_new
from headgate.errors import Cause, ConnectorError, EndOfStream, NotConnected, RetryLater
from headgate.runtime.streams.parts import Merged, Nothing, Share, take
from tests.waiting import LONG_S


class Part:
    """A part that has what a test puts into it."""

    def __init__(self, name: str, names: Sequence[str] = ()) -> None:
        self.name = name
        self.names = names
        self.opened_with: list[Position] = []
        self.acked: list[Position] = []
        self.closed = 0
        self.reads = 0
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, *what: Any) -> Part:
        """Numbers become batches of one record; errors are raised."""
        for one in what:
            self._queue.put_nowait(one)
        return self

    async def check(self) -> None:
        pass

    async def parts(self) -> Sequence[str]:
        return self.names

    async def open(self, position: Position) -> None:
        self.opened_with.append(position)

    async def read(self) -> Batch:
        self.reads += 1
        found = await self._queue.get()
        if isinstance(found, Exception):
            raise found
        return Batch([{"part": self.name, "id": found}], position=found)

    async def ack(self, position: Position) -> None:
        self.acked.append(position)

    async def close(self) -> None:
        self.closed += 1


class Parts(dict[str, Part]):
    """Parts by name."""

    def __init__(self, *names: str) -> None:
        super().__init__({name: Part(name) for name in names})


@pytest.fixture
async def merging() -> AsyncIterator[Any]:
    """Merge parts for the length of a test."""
    made: list[Merged] = []

    async def merge(parts: Parts, position: Position = None) -> Merged:
        made.append(Merged(parts))
        await made[-1].open(position)
        return made[-1]

    yield merge
    for one in made:
        await one.close()


async def soon(waiting: Any) -> Any:
    return await asyncio.wait_for(waiting, LONG_S)


async def turns(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_each_part_is_opened_where_it_stands(merging: Any) -> None:
    parts = Parts("a", "b", "c")
    await merging(parts, {"a": 4, "c": 6, "z": 9})
    assert [part.opened_with for part in parts.values()] == [[4], [None], [6]]


async def test_a_position_is_a_map_of_all_that_was_taken_and_forgets_nobody(merging: Any) -> None:
    parts = Parts("a", "b")
    merged = await merging(parts, {"a": 4, "z": 9})
    parts["b"].put(1)
    assert (await soon(merged.read())).position == {"a": 4, "b": 1, "z": 9}
    parts["a"].put(5)
    batch = await soon(merged.read())
    assert (batch.position, batch.records) == ({"a": 5, "b": 1, "z": 9}, [{"part": "a", "id": 5}])


async def test_a_part_that_has_much_does_not_keep_the_others_waiting(merging: Any) -> None:
    parts = Parts("a", "b", "c")
    parts["a"].put(*range(100))
    merged = await merging(parts)
    await soon(merged.read())
    parts["b"].put(0, 1)
    parts["c"].put(0)
    await turns()
    read = [(await soon(merged.read())).records[0]["part"] for _ in range(6)]
    assert set(read[:3]) == {"a", "b", "c"}
    assert read.count("b") == 2


async def test_of_each_part_one_batch_at_most_is_read_ahead(merging: Any) -> None:
    parts = Parts("a", "b")
    for part in parts.values():
        part.put(*range(10))
    merged = await merging(parts)
    await soon(merged.read())
    await turns()
    assert sum(part.reads for part in parts.values()) == 3, "one taken, and one of each waiting"


async def test_an_ack_goes_to_the_part_whose_batch_it_was(merging: Any) -> None:
    parts = Parts("a", "b")
    merged = await merging(parts, {"a": 1})
    parts["a"].put(2)
    first = await soon(merged.read())
    parts["b"].put(7)
    second = await soon(merged.read())
    await merged.ack(first.position)
    assert (parts["a"].acked, parts["b"].acked) == ([2], [])
    await merged.ack(second.position)
    assert (parts["a"].acked, parts["b"].acked) == ([2], [7])


async def test_it_ends_when_all_parts_have_ended(merging: Any) -> None:
    parts = Parts("a", "b")
    parts["a"].put(EndOfStream("over"))
    merged = await merging(parts)
    reading = asyncio.ensure_future(merged.read())
    await turns()
    assert not reading.done()
    parts["b"].put(0, EndOfStream("over"))
    assert (await soon(reading)).records == [{"part": "b", "id": 0}]
    for _ in range(2):
        with pytest.raises(EndOfStream):
            await soon(merged.read())
    assert parts["a"].reads == 1, "what has ended is not read again"


async def test_without_parts_it_ends_at_once(merging: Any) -> None:
    merged = await merging(Parts(), {"z": 9})
    with pytest.raises(EndOfStream):
        await soon(merged.read())


async def test_a_part_that_asks_for_patience_holds_up_nobody_else(merging: Any) -> None:
    parts = Parts("a", "b")
    parts["a"].put(RetryLater("slowly", after_s=0.05), 0)
    parts["b"].put(0)
    merged = await merging(parts)
    assert (await soon(merged.read())).records[0]["part"] == "b"
    assert (await soon(merged.read())).records[0]["part"] == "a"


async def test_the_failure_of_one_part_is_the_failure_of_the_stream(merging: Any) -> None:
    parts = Parts("a", "b")
    merged = await merging(parts)
    parts["a"].put(NotConnected("away"))
    with pytest.raises(NotConnected, match="away"):
        await soon(merged.read())


async def test_a_read_that_is_cancelled_loses_nothing(merging: Any) -> None:
    parts = Parts("a", "b")
    merged = await merging(parts)
    for number in range(20):
        reading = asyncio.ensure_future(merged.read())
        await turns(number % 4)
        parts["a" if number % 2 else "b"].put(number)
        await turns(number % 3)
        if not reading.done():
            reading.cancel()
        else:
            parts["a"].acked.append(reading.result().records[0]["id"])
        await asyncio.wait([reading])
    found = set(parts["a"].acked)
    while len(found) < 20:
        found.add((await soon(merged.read())).records[0]["id"])
    assert found == set(range(20))


async def test_a_close_ends_all_reads_and_closes_each_part_whatever_one_of_them_does() -> None:
    class Bad(Part):
        async def close(self) -> None:
            await super().close()
            raise OSError("broken")

    parts = Parts("a", "b")
    parts["a"] = Bad("a")
    merged = Merged(parts)
    await merged.open(None)
    reading = asyncio.ensure_future(merged.read())
    await turns()
    before = len(asyncio.all_tasks())
    reading.cancel()
    with pytest.raises(OSError, match="broken"):
        await merged.close()
    await asyncio.wait([reading])
    assert [part.closed for part in parts.values()] == [1, 1]
    assert len(asyncio.all_tasks()) <= before - 3


async def test_a_part_that_cannot_be_opened_fails_the_stream_and_all_are_closed_after() -> None:
    class Locked(Part):
        async def open(self, position: Position) -> None:
            raise ConnectorError("not let in", cause=Cause.AUTH)

    parts = Parts("a", "b")
    parts["a"] = Locked("a")
    merged = Merged(parts)
    with pytest.raises(ConnectorError, match="not let in"):
        await merged.open(None)
    await merged.close()
    assert [part.closed for part in parts.values()] == [1, 1]


@pytest.mark.parametrize("position", [7, "a", [1]])
async def test_a_position_that_is_no_map_is_a_mistake_of_configuration(position: Any) -> None:
    with pytest.raises(ConnectorError) as caught:
        await Merged(Parts("a")).open(position)
    assert caught.value.cause is Cause.CONFIG


# What a stream takes.


class Builder:
    """Builds parts, and remembers them."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.built: list[Part] = []

    def __call__(self, part: str) -> Part:
        self.built.append(Part(part, self.names))
        return self.built[-1]


@pytest.mark.parametrize(("index", "mine"), [(0, ["a", "d"]), (1, ["b"]), (2, ["c"])])
async def test_a_stream_takes_the_parts_whose_place_is_its_own(index: int, mine: list[str]) -> None:
    build = Builder("a", "b", "c", "d")
    assert await (await take(build, Share(index, 3))).parts() == mine
    assert build.built[0].closed == 1, "the one that listed them"


async def test_places_are_those_of_the_registry_and_only_what_the_source_lists_is_read() -> None:
    async def listed(found: Sequence[str]) -> Sequence[str]:
        return with_new(["x", "b", "y"], found)  # x b y a c

    build = Builder("a", "b", "c")
    assert await (await take(build, Share(0, 2, listed))).parts() == ["c"]
    assert await (await take(build, Share(1, 2, listed))).parts() == ["b", "a"]


async def test_one_unnamed_part_is_the_first_streams_as_it_is() -> None:
    build = Builder("")
    assert await take(build, Share(0, 2)) is build.built[0]
    assert build.built[0].closed == 0
    rest = await take(build, Share(1, 2))
    assert isinstance(rest, Nothing)
    assert build.built[1].closed == 1
    with pytest.raises(EndOfStream):
        await rest.read()


@pytest.mark.parametrize("names", [("a", "a"), ("", "a")])
async def test_names_that_are_none_are_a_bug_of_the_connector(names: tuple[str, ...]) -> None:
    build = Builder(*names)
    with pytest.raises(ConnectorError) as caught:
        await take(build, Share())
    assert caught.value.cause is Cause.BUG
    assert build.built[0].closed == 1
