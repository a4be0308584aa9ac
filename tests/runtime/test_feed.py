"""What a program has pushed and is not durable: handed on in order, again if need be, and forgotten when it may be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.api import Batch
from headgate.errors import Fenced
from headgate.runtime.push import feed as feeds
from headgate.runtime.push.feed import Piece, PushFeed


def piece(*ids: int, size_bytes: int = 10, event_time_s: float | None = None) -> Piece:
    """Records that are their own ids."""
    return Piece(list(ids), list(ids), [{"id": id} for id in ids], size_bytes, event_time_s)


def feed_of(*pieces: Piece, position: int | None = None) -> PushFeed:
    """A feed with these pieces, and a run that begins here."""
    feed = PushFeed()
    feed.rewind(position)
    for one in pieces:
        feed.append(one)
    return feed


async def read_all(feed: PushFeed) -> list[Any]:
    """Everything that a run can take without waiting."""
    records: list[Any] = []
    while (batch := await read_now(feed)) is not None:
        assert [m["id"] for m in batch.meta or ()] == batch.records
        assert batch.position == batch.records[-1]
        records += batch.records
    return records


async def read_now(feed: PushFeed) -> Batch | None:
    """A batch, or None if the reader has to wait."""
    reading = asyncio.ensure_future(feed.read())
    await asyncio.sleep(0)
    if reading.done():
        return reading.result()
    reading.cancel()
    return None


async def test_pieces_are_handed_on_together_in_order_with_the_last_position_and_time() -> None:
    feed = feed_of(piece(0, 1, size_bytes=3, event_time_s=1.0), piece(5, size_bytes=4, event_time_s=2.5))
    batch = await feed.read()
    assert (batch.records, batch.position, batch.size_bytes, batch.event_time_s) == ([0, 1, 5], 5, 7, 2.5)
    assert batch.meta == [{"id": 0}, {"id": 1}, {"id": 5}]


async def test_a_single_piece_is_handed_on_as_it_is() -> None:
    one = piece(1, 2, 3)
    batch = await feed_of(one).read()
    assert batch.records is one.records
    assert batch.meta is one.meta


async def test_a_reader_waits_until_there_is_something() -> None:
    feed = feed_of()
    reading = asyncio.ensure_future(feed.read())
    await asyncio.sleep(0)
    assert not reading.done()
    feed.append(piece(7))
    assert (await reading).records == [7]
    assert await read_now(feed) is None


async def test_a_reader_that_is_cancelled_takes_nothing_with_it() -> None:
    feed = feed_of()
    reading = asyncio.ensure_future(feed.read())
    await asyncio.sleep(0)
    feed.append(piece(1))
    reading.cancel()
    await asyncio.wait([reading])
    assert await read_all(feed) == [1]


@pytest.mark.parametrize(("most_records", "most_bytes"), [(3, 1000), (1000, 25)])
async def test_batches_are_bounded_in_records_and_in_bytes(
    monkeypatch: pytest.MonkeyPatch, most_records: int, most_bytes: int
) -> None:
    monkeypatch.setattr(feeds, "MOST_RECORDS", most_records)
    monkeypatch.setattr(feeds, "MOST_BYTES", most_bytes)
    feed = feed_of(*(piece(n) for n in range(7)))
    sizes = []
    while (batch := await read_now(feed)) is not None:
        sizes.append(len(batch.records))
    assert sizes == ([3, 3, 1] if most_records == 3 else [2, 2, 2, 1])


async def test_a_piece_that_is_larger_than_a_batch_is_handed_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MOST_RECORDS", 2)
    feed = feed_of(piece(0), piece(1, 2, 3, 4), piece(5))
    assert [(await feed.read()).records for _ in range(3)] == [[0], [1, 2, 3, 4], [5]]


@pytest.mark.parametrize(
    ("position", "again"),
    [
        (None, [0, 1, 2, 10, 11, 20]),
        (0, [1, 2, 10, 11, 20]),
        (1, [2, 10, 11, 20]),
        (2, [10, 11, 20]),
        (5, [10, 11, 20]),
        (10, [11, 20]),
        (11, [20]),
        (20, []),
        (99, []),
    ],
)
async def test_a_run_begins_anywhere_also_in_the_middle_of_a_piece(position: int | None, again: list[int]) -> None:
    feed = feed_of(piece(0, 1, 2), piece(10, 11), piece(20))
    for _ in range(2):
        feed.rewind(position)
        assert await read_all(feed) == again
    feed.append(piece(100))
    assert await read_all(feed) == [100]
    feed.rewind(None)
    assert await read_all(feed) == [0, 1, 2, 10, 11, 20, 100]
    assert feed.trim(100) == 7


async def test_what_is_durable_is_forgotten_and_counted_once() -> None:
    feed = feed_of(piece(0, 1), piece(2, 3), piece(4))
    await feed.read()
    assert [feed.trim(position) for position in (None, 0, 1, 1, 2, 3, 4, 4)] == [0, 0, 2, 0, 0, 2, 1, 0]
    feed.append(piece(5))
    assert await read_all(feed) == [5]


async def test_trimming_before_and_behind_the_reader_moves_it_nowhere() -> None:
    feed = feed_of(piece(0), piece(1), piece(2))
    assert feed.trim(0) == 1  # Durable by an earlier run, and not read by this one.
    assert (await feed.read()).records == [1, 2]
    feed.append(piece(3))
    assert feed.trim(1) == 1
    assert await read_all(feed) == [3]
    feed.rewind(1)
    assert await read_all(feed) == [2, 3]


async def test_a_piece_that_a_run_began_in_the_middle_of_is_counted_whole() -> None:
    feed = feed_of(piece(0, 1, 2, size_bytes=30))
    feed.rewind(0)
    batch = await feed.read()
    assert (batch.records, batch.size_bytes) == ([1, 2], 20)
    assert feed.trim(0) + feed.trim(2) == 3


async def test_an_older_run_takes_nothing_from_the_next_one() -> None:
    """A run that was left to itself may still wait for records when its successor begins."""
    feed = feed_of(piece(0))
    await feed.read()
    old = asyncio.ensure_future(feed.read())
    await asyncio.sleep(0)
    feed.rewind(0)
    new = asyncio.ensure_future(feed.read())
    feed.append(piece(1))
    with pytest.raises(Fenced):
        await old
    assert (await new).records == [1]


async def test_a_feed_that_is_cleared_says_how_much_it_held() -> None:
    feed = feed_of(piece(0, 1), piece(2))
    await feed.read()
    feed.append(piece(3))
    assert (feed.clear(), feed.clear()) == (4, 0)
    assert await read_now(feed) is None


class Model:
    """A list of all records, and where the run stands in it."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.next = 0
        self.trimmed = 0


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(1, 3), min_size=1, max_size=4)),
        st.tuples(st.just("read"), st.none()),
        st.tuples(st.just("trim"), st.floats(0, 1)),
        st.tuples(st.just("rewind"), st.floats(0, 1)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(actions)
def test_every_run_reads_everything_after_its_position_once_and_in_order(actions: list[tuple[str, Any]]) -> None:
    asyncio.run(_follow(actions))


async def _follow(actions: list[tuple[str, Any]]) -> None:
    feed, model = feed_of(), Model()
    for action, value in actions:
        match action:
            case "append":
                ids: list[int] = []
                for gap in value:
                    ids.append((ids or model.ids or [-1])[-1] + gap)
                feed.append(piece(*ids))
                model.ids += ids
            case "read":
                batch = await read_now(feed)
                records = [] if batch is None else batch.records
                assert records == model.ids[model.next : model.next + len(records)]
                assert records or model.next == len(model.ids)
                model.next += len(records)
            case "trim":
                end = model.trimmed + int(value * (model.next - model.trimmed))
                freed = feed.trim(model.ids[end - 1] if end else None)
                assert freed <= end - model.trimmed
                model.trimmed += freed
            case "rewind":
                begin = model.trimmed + int(value * (len(model.ids) - model.trimmed))
                feed.rewind(model.ids[begin - 1] if begin else None)
                model.next = begin
    assert await read_all(feed) == model.ids[model.next :]
    assert model.trimmed + (feed.trim(model.ids[-1]) if model.ids else 0) == len(model.ids)
