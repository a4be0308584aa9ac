"""Taps on real nodes: what is seen where, from which node, and that nobody waits for who looks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import pytest

from headgate.connectors.api import Connector, Options, Outgoing, SinkKind
from headgate.core.tap import MOST_TAPS, RECORDS_A_SECOND, At, Tap
from headgate.errors import Bad, BadRecords, ConfigError, Refused, StoreError
from headgate.ids import new_id
from headgate.runtime.taps import hub
from headgate.runtime.taps.hub import View
from headgate.store.taps import Parcel, TapTable
from tests.runtime.conftest import BLACKHOLE, IDS, Harness, generator, postgres
from tests.waiting import LONG_S

Join: TypeAlias = Callable[..., Awaitable[Harness]]

HOUR_S = 3600.0


async def tapped(
    hg: Harness,
    name: str = "orders",
    at: At = "source",
    *,
    limit: int | None = None,
    for_s: float = HOUR_S,
    **more: Any,
) -> View:
    """Begin to look, through this node."""
    found = await hg.node.registry.get(name)
    return await hg.node.taps.open(Tap(new_id(), found.id, at, **more), limit, for_s)


async def seen(view: View, number: int, *, is_so: Callable[[dict[str, Any]], bool] = lambda one: True) -> list[Any]:
    """The next records for which this holds, as many as are asked for."""
    found: list[Any] = []
    async with asyncio.timeout(LONG_S):
        while len(found) < number:
            look = await view.look(1.0)
            found += [one for one in map(json.loads, look.records) if is_so(one)]
            assert look.ended is None or len(found) >= number
    return found


async def gone(hg: Harness) -> None:
    """Until nobody looks any more, and nothing is left of it."""

    async def is_over() -> bool:
        rows = await hg.sql("SELECT FROM headgate.tap UNION ALL SELECT FROM headgate.tapped")
        return not rows and not hg.node.taps.points.active

    await hg.until_true(is_over)


async def move(hg: Harness, name: str, node: str) -> None:
    stream = await hg.node.streams.find(f"{name}:0")
    await hg.node.placement.move(stream, await hg.node.nodes.find(node), "tester")
    hg.node.waker.wake("streams")
    await hg.until_owners(**{name: node})


# What is seen where.


async def test_records_are_seen_as_they_were_read_mapped_and_written(hg: Harness) -> None:
    mapping = {"where": "id % 2 == 0", "set": {"id": "id", "twice": "id * 2"}}
    await hg.apply(orders={"source": generator(), "mapping": mapping, "sink": BLACKHOLE})
    read, mapped, written = [await tapped(hg, at=at) for at in ("source", "mapped", "written")]
    for one in await seen(read, 3):
        assert (one["stream"], one["node"]) == ("orders:0", hg.node.name)
        assert {"id", "kind"} <= one["record"].keys()
        assert str(one["place"])
    for view in (mapped, written):
        for one in await seen(view, 3):
            record = one["record"]
            assert record == {"id": record["id"], "twice": 2 * record["id"]}
            assert record["id"] % 2 == 0


class Picky:
    """A sink that refuses some records by name."""

    def __init__(self, options: Any, context: Any) -> None:
        pass

    async def check(self) -> None:
        pass

    async def open(self, grant: Any) -> None:
        pass

    async def write(self, batch: Outgoing) -> None:
        bad = [Bad(place, "small", "is too large") for place, one in enumerate(batch.records) if one["small"] > 2]
        if bad:
            raise BadRecords(bad)

    async def close(self) -> None:
        pass


async def test_dead_records_are_seen_with_the_reason_and_the_others_as_written(
    hg: Harness, plug: Callable[[Connector], None]
) -> None:
    plug(Connector("picky", "picky", sink=SinkKind(Options, Picky)))
    mapping = {"set": {"id": "id if id % 5 else id + kind", "small": "id % 5"}}
    letters = {"stop_after": "never"}
    await hg.apply(
        orders={"source": generator(), "mapping": mapping, "sink": {"type": "picky"}, "dead_letters": letters}
    )
    dead, written = await tapped(hg, at="dead"), await tapped(hg, at="written")
    found = await seen(dead, 20)
    assert {one["stage"] for one in found} == {"mapping", "sink"}
    for one in found:
        number = one["record"]["id"] % 5
        assert number in ((0,) if one["stage"] == "mapping" else (3, 4))
        assert one["field"] == ("set.id" if number == 0 else "small")
        assert one["reason"]
        assert one.get("mapped") == (None if number == 0 else {"id": one["record"]["id"], "small": number})
    assert {one["record"]["small"] for one in await seen(written, 20)} == {1, 2}


async def test_a_payload_that_could_not_be_read_is_seen_as_text(hg: Harness, tmp_path: Any) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text("")
    source = {"type": "files", "path": str(lines), "follow": True}
    await hg.apply(orders={"source": source, "sink": BLACKHOLE})
    await hg.until("orders", status="RUNNING")
    view = await tapped(hg, at="dead")
    lines.write_text('{"id": 1}\n{broken\n')
    (found,) = await seen(view, 1)
    assert (found["record"], found["stage"]) == ("{broken", "source")


async def test_a_condition_and_a_sample_say_which(hg: Harness) -> None:
    source = generator(rate=None, count=1000, batch=1000)
    await hg.apply(orders={"source": source, "sink": BLACKHOLE, "enabled": False})
    view = await tapped(hg, where="id % 10 == 3", sample=4)
    await hg.node.registry.start("orders", "tester")
    assert [one["record"]["id"] for one in await seen(view, 25)] == list(range(3, 1000, 40))


async def test_a_condition_that_is_wrong_is_refused_and_leaves_nothing(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    with pytest.raises(ConfigError, match=r"tap\.where"):
        await tapped(hg, where="id >")
    await gone(hg)


async def test_of_two_datasources_only_the_one_is_seen(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE}, others={"source": generator(), "sink": BLACKHOLE})
    view = await tapped(hg, "others")
    assert {one["stream"] for one in await seen(view, 50)} == {"others:0"}


async def test_a_tap_outlives_the_run_that_it_looks_at(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": {"set": {"v": "1"}}, "sink": BLACKHOLE})
    view = await tapped(hg, at="mapped")
    await seen(view, 5)
    await hg.apply(orders={"source": generator(), "mapping": {"set": {"v": "2"}}, "sink": BLACKHOLE})
    await seen(view, 5, is_so=lambda one: one["record"] == {"v": 2})


# Ends.


async def test_it_ends_when_enough_was_shown(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    view = await tapped(hg, limit=7)
    found: list[bytes] = []
    while True:
        look = await view.look(1.0)
        found += look.records
        if look.ended:
            break
    assert (len(found), look.ended) == (7, "limit")
    view.close()
    await gone(hg)


async def test_it_ends_when_its_time_is_over(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE, "enabled": False})
    view = await tapped(hg, for_s=0.1)
    assert (await view.look(HOUR_S)).ended == "time"


async def test_one_that_nobody_reads_ends(hg: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    monkeypatch.setattr(hub, "UNREAD_S", 0.1)
    await tapped(hg)
    await gone(hg)


async def test_there_are_only_a_few_at_a_time(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE, "enabled": False})
    views = [await tapped(hg) for _ in range(MOST_TAPS)]
    with pytest.raises(Refused, match="taps are open") as raised:
        await tapped(hg)
    assert raised.value.code == "too_many"
    for view in views:
        view.close()
    await gone(hg)
    await tapped(hg)


# Nobody waits for who looks.


async def test_a_reader_that_is_slow_loses_records_and_the_stream_loses_none(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(rate=None, batch=1000), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until("orders", status="RUNNING")
    view, unread = await tapped(hg), await tapped(hg, at="written", where="id >= 0")
    shown = dropped = 0

    async def is_far(more_than: int) -> None:
        await hg.until_true(lambda: hg.node.manager.handles()[0].holding.progress.totals.written > more_than)  # type: ignore[union-attr]

    for round in range(1, 4):
        await is_far(30_000 * round)
        look = await view.look(1.0)
        shown, dropped = shown + len(look.records), dropped + look.dropped
        assert len(look.records) <= hub.RECORDS_READY
    assert dropped > 0
    assert shown + dropped > 30_000
    look = await unread.look(1.0)
    assert len(look.records) <= hub.RECORDS_READY
    assert look.dropped > 0
    await hg.node.registry.set_enabled("orders", False, "tester")
    await hg.until("orders", status="STOPPED")
    ids = await hg.ids()
    assert ids == list(range(ids[0], ids[0] + len(ids)))


async def test_what_is_dropped_adds_up_with_what_is_shown(hg: Harness) -> None:
    count = 5 * RECORDS_A_SECOND
    await hg.apply(orders={"source": generator(rate=None, count=count), "sink": BLACKHOLE, "enabled": False})
    view = await tapped(hg)
    await hg.node.registry.start("orders", "tester")
    shown = dropped = 0
    async with asyncio.timeout(LONG_S):
        while shown + dropped < count:
            look = await view.look(1.0)
            shown, dropped = shown + len(look.records), dropped + look.dropped
    assert (shown + dropped, shown > 0, dropped > 0) == (count, True, True)


async def test_when_nobody_looks_runs_offer_nothing(hg: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[object] = []
    points = hg.node.taps.points
    for point in ("read", "mapped", "written"):
        monkeypatch.setattr(points, point, lambda *args: offered.append(args))
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until_rows(20)
    assert offered == []
    view = await tapped(hg)
    await hg.until_true(lambda: offered)
    view.close()
    await gone(hg)


# Several nodes.


async def test_a_tap_shows_records_of_another_node_and_goes_on_when_the_stream_moves(join: Join) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await left.until("orders", status="RUNNING")
    await move(left, "orders", "right")
    view = await tapped(left, at="written", where="id >= 0")
    assert {one["node"] for one in await seen(view, 10)} == {"right"}
    await move(left, "orders", "left")
    await seen(view, 10, is_so=lambda one: one["node"] == "left")
    await move(left, "orders", "right")
    await seen(view, 10, is_so=lambda one: one["node"] == "right")
    view.close()
    await gone(left)
    await gone(right)


async def test_records_of_another_node_are_dropped_rather_than_waited_for(join: Join) -> None:
    left, _ = await join("left"), await join("right")
    await left.apply(orders={"source": generator(rate=20_000), "mapping": IDS, "sink": postgres(left.url)})
    await left.until("orders", status="RUNNING")
    await move(left, "orders", "right")
    view = await tapped(left)
    await left.until_rows(40_000)
    shown = dropped = 0
    async with asyncio.timeout(LONG_S):
        while not (shown and dropped):
            look = await view.look(1.0)
            shown, dropped = shown + len(look.records), dropped + look.dropped
            assert len(look.records) <= hub.RECORDS_READY


async def test_a_tap_is_found_without_wake_ups(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    left, _ = await join("left"), await join("right")
    await left.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await left.until("orders", status="RUNNING")
    await move(left, "orders", "right")
    monkeypatch.setattr("headgate.store.wake.Waker.wake", lambda self, topic, number=0: None)
    await seen(await tapped(left), 3)


async def test_a_database_that_loses_the_taps_is_told_again(join: Join) -> None:
    left, _ = await join("left"), await join("right")
    await left.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await left.until("orders", status="RUNNING")
    await move(left, "orders", "right")
    view = await tapped(left)
    await seen(view, 3)
    await left.sql("TRUNCATE headgate.tap CASCADE")

    async def is_back() -> bool:
        return bool(await left.sql("SELECT FROM headgate.tap"))

    await left.until_true(is_back)
    await seen(view, 1000)


async def test_what_the_database_does_not_take_is_dropped_and_counted(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await left.until("orders", status="RUNNING")
    await move(left, "orders", "right")
    lost: list[Parcel] = []

    async def away(self: TapTable, parcels: Sequence[Parcel]) -> None:
        lost.extend(parcels)
        raise StoreError("the database is away")

    view = await tapped(left)
    with monkeypatch.context() as patched:
        patched.setattr(TapTable, "send", away)
        await right.until_true(lambda: len(lost) > 1)
    dropped = 0
    async with asyncio.timeout(LONG_S):
        while not dropped:
            dropped += (await view.look(1.0)).dropped
    assert dropped >= lost[-1].dropped + len(lost[-1].records) > 0
