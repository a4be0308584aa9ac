"""Several nodes on one database: who runs what, how streams move, and what an operator does about it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from headgate.connectors.api import Batch, Connector, Context, Options, SourceKind
from headgate.core import lifecycle
from headgate.errors import Cause, ConnectorError, Refused
from headgate.store.secrets import Keyring, new_master_key
from tests.proxy import proxied
from tests.runtime.conftest import BLACKHOLE, IDS, Harness, generator, postgres

Join: TypeAlias = Callable[..., Awaitable[Harness]]
Plug: TypeAlias = Callable[..., None]


def into(hg: Harness, table: str = "target", **options: Any) -> dict[str, Any]:
    """A datasource that counts into a table of its own."""
    return {"source": generator(**options), "mapping": IDS, "sink": postgres(hg.url, table)}


def is_whole(ids: list[int]) -> bool:
    """Whether each record came once, from the first to the last."""
    return ids == list(range(len(ids)))


async def more_rows(hg: Harness, *tables: str) -> None:
    """Until each of these tables has grown."""
    for table in tables:
        await hg.until_rows(len(await hg.ids(table)) + 3, table)


async def stop(hg: Harness, name: str = "orders") -> None:
    await hg.node.registry.set_enabled(name, False, "tester")
    await hg.until(name, status="STOPPED")
    await hg.until_owners(**{name: None})


async def start(hg: Harness, name: str = "orders") -> None:
    await hg.node.registry.set_enabled(name, True, "tester")
    await hg.until(name, status="RUNNING")


# Spread.


async def test_streams_are_spread_over_the_nodes_and_each_runs_on_one(join: Join) -> None:
    nodes = [await join(name) for name in ("left", "middle", "right")]
    names = [f"ds-{number}" for number in range(6)]
    await nodes[0].apply(**{name: {"source": generator(), "sink": BLACKHOLE} for name in names})
    for name in names:
        await nodes[0].until(name, status="RUNNING", running=1)
    assert Counter((await nodes[0].owners()).values()).keys() == {"left", "middle", "right"}
    here = [handle.name for hg in nodes for handle in hg.node.manager.handles()]  # type: ignore[union-attr]
    assert sorted(here) == [f"{name}:0" for name in names]


async def test_a_node_that_joins_takes_over_its_share_and_pauses_nothing_else(join: Join) -> None:
    left = await join("left")
    tables = ["a", "b", "c", "d"]
    await left.apply(**{table: into(left, table) for table in tables})
    await more_rows(left, *tables)
    before = {one.name: one for one in await left.node.streams.all()}
    right = await join("right")

    async def is_even() -> bool:
        owners = list((await left.owners()).values())
        return owners.count("left") == owners.count("right") == 2

    await right.until_true(is_even)
    await more_rows(right, *tables)
    after = {one.name: one for one in await left.node.streams.all()}
    stayed = [name for name, one in after.items() if one.node == "left"]
    assert all(after[name].run == before[name].run for name in stayed)
    for table in tables:
        await stop(left, table)
        assert is_whole(await left.ids(table))


async def test_an_operators_wish_outranks_the_planner_until_its_node_leaves(join: Join) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(a=into(left, "a"), b=into(left, "b"))
    await more_rows(left, "a", "b")
    target = await left.node.nodes.find("right")
    for name in ("a:0", "b:0"):
        await left.node.placement.move(await left.node.streams.find(name), target, "tester")
    left.node.waker.wake("streams")
    await left.until_owners(a="right", b="right")
    await more_rows(left, "a", "b")
    await right.drain()
    await left.until_owners(a="left", b="left")
    await right.drain(False)
    await left.until_owners(a="right", b="right")
    await right.node.stop()
    await left.until_owners(a="left", b="left")
    assert not await left.sql("SELECT FROM headgate.wish")


async def test_streams_placed_by_their_number_follow_the_order_of_joining(join: Join) -> None:
    left = await join("left")
    await left.apply(a={**into(left, "a"), "assignment": "modulo"})
    await left.until_owners(a="left")
    right = await join("right")
    await right.apply(b=into(left, "b"))
    await left.until_owners(a="left", b="right")
    with pytest.raises(Refused, match="by its number"):
        await left.node.placement.move(await left.node.streams.find("a:0"), await left.node.nodes.find("right"), "me")
    await left.node.stop()
    await right.until_owners(a="right", b="right")


# Moving.


async def test_a_drained_node_hands_all_over_without_loss_or_repetition_and_is_eligible_again_when_undrained(
    join: Join,
) -> None:
    left = await join("left")
    tables = ["a", "b", "c", "d"]
    await left.apply(**{table: into(left, table) for table in tables})
    await more_rows(left, *tables)
    right = await join("right")
    await left.drain()
    await right.until_owners(**dict.fromkeys(tables, "right"))
    await more_rows(right, *tables)
    assert left.node.manager.handles() == []  # type: ignore[union-attr]
    await right.drain()
    await left.drain(False)
    await left.until_owners(**dict.fromkeys(tables, "left"))
    await more_rows(left, *tables)
    for table in tables:
        await stop(left, table)
        assert is_whole(await left.ids(table))
        history = await left.history(table)
        assert [actor for kind, actor in history if kind == "acquired"] == ["left", "right", "left"]
        assert "revoked" not in {kind for kind, _ in history}, "handed over, not taken away"


async def test_while_every_node_drains_streams_wait_and_go_on_where_one_is_undrained(join: Join) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(orders=into(left))
    await more_rows(left, "target")
    await left.drain()
    await right.drain()
    await left.until_owners(orders=None)
    assert await left.node.placement.grant([]) == {}
    await right.drain(False)
    await left.until_owners(orders="right")
    await more_rows(right, "target")
    assert is_whole(await right.ids())


async def test_a_rolling_restart_of_three_nodes_loses_and_repeats_nothing(join: Join) -> None:
    nodes = [await join(name) for name in ("one", "two", "three")]
    tables = ["a", "b", "c", "d", "e", "f"]
    await nodes[0].apply(**{table: into(nodes[0], table) for table in tables})
    await more_rows(nodes[0], *tables)
    for number, name in enumerate(("one", "two", "three")):
        await nodes[number].stop()
        nodes[number] = await join(f"{name}-again")
        await more_rows(nodes[number], *tables)
    names = {row["name"] for row in await nodes[0].sql("SELECT name FROM headgate.node")}
    assert names == {"one-again", "two-again", "three-again"}
    for table in tables:
        await stop(nodes[0], table)
        assert is_whole(await nodes[0].ids(table))
        assert "revoked" not in {kind for kind, _ in await nodes[0].history(table)}


async def test_a_node_that_stops_with_the_database_away_says_what_it_kept_and_others_take_it(
    join: Join, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle.transitions, "CANCEL_S", 0.3)
    monkeypatch.setattr(lifecycle.transitions, "STOP_S", 0.8)
    async with proxied(url) as (proxy, through):
        left = await join("left", url=through, lease_s=3.0)
        await left.apply(orders=into(left), views=into(left, "views"))
        await more_rows(left, "target", "views")
        right = await join("right")
        proxy.refuse = True
        proxy.cut()
        assert sorted(await left.node.drain()) == ["orders:0", "views:0"]
        await right.until_owners(orders="right", views="right")
        await more_rows(right, "target", "views")
        assert is_whole(await right.ids())
        assert is_whole(await right.ids("views"))
        await left.stop()


async def test_a_node_that_is_found_dead_loses_its_streams_to_the_other_and_begins_anew(join: Join) -> None:
    left = await join("left")
    await left.apply(orders=into(left))
    await more_rows(left, "target")
    right = await join("right")
    before = left.node.incarnation
    await right.node.nodes.end(before)
    await left.until_true(lambda: left.node.incarnation != before)
    await more_rows(right, "target")
    await stop(right)
    assert is_whole(await right.ids())


# Restart and publish.


async def test_a_restart_and_a_publish_keep_the_stream_where_it_is(join: Join) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(orders=into(left))
    await left.until("orders", status="RUNNING", running=1)
    epoch = (await left.node.streams.find("orders:0")).epoch
    await right.node.registry.restart("orders", "tester")

    async def is_regranted() -> bool:
        return bool((await left.node.streams.find("orders:0")).epoch == epoch + 1)

    await left.until_true(is_regranted)
    await right.apply(orders={**into(left), "mapping": {**IDS, "where": "id != -1"}})
    await left.until("orders", status="RUNNING", running=2, version=2)
    await more_rows(left, "target")
    history = await left.history("orders")
    assert {actor for _, actor in history} == {"left"}
    assert [kind for kind, _ in history if kind != "acquired"] == ["granted"]
    await stop(right)
    assert is_whole(await left.ids())


async def test_a_stopped_datasource_is_nobodys_and_goes_on_after_a_start(join: Join) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(orders=into(left))
    await more_rows(left, "target")
    await stop(right)
    assert await right.node.placement.grant([]) == {}
    assert left.node.manager.handles() == right.node.manager.handles() == []  # type: ignore[union-attr]
    await start(left)
    await more_rows(left, "target")
    await stop(left)
    assert is_whole(await left.ids())


# The end of a source.


async def test_a_finished_stream_is_not_granted_again_until_a_restart_or_a_publish(join: Join) -> None:
    left = await join("left")
    await left.apply(orders=into(left, rate=None, count=100))
    await left.until("orders", status="STOPPED", detail="finished", running=1)
    await left.until_owners(orders=None)
    right = await join("right")
    assert await right.node.placement.grant([]) == {}
    assert [kind for kind, _ in await right.history("orders")].count("released") == 1

    await right.node.registry.restart("orders", "tester")

    async def has_ended_again() -> bool:
        return [kind for kind, _ in await right.history("orders")].count("released") == 2

    await right.until_true(has_ended_again)
    assert await right.node.placement.grant([]) == {}
    assert len(await right.ids()) == 100

    await right.apply(orders=into(left, rate=None, count=250))
    await right.until("orders", status="STOPPED", detail="finished", running=2)
    assert is_whole(await right.ids())
    assert len(await right.ids()) == 250


# Nodes that are not alike.


class Nothing(Options):
    """No options."""


class Counting:
    """A source that counts; what goes wrong can be put in place of a method."""

    def __init__(self, options: Any = None, context: Context | None = None) -> None:
        self._next = 0

    async def check(self) -> None:
        pass

    async def parts(self) -> list[str]:
        return [""]

    async def open(self, position: Any) -> None:
        self._next = 0 if position is None else position + 1

    async def read(self) -> Batch:
        await asyncio.sleep(0.005)
        self._next += 1
        return Batch([{"id": self._next - 1}], self._next - 1)

    async def ack(self, position: Any) -> None:
        pass

    async def close(self) -> None:
        pass


def source(kind: type = Counting) -> Connector:
    return Connector("special", "special", source=SourceKind(Nothing, kind))


async def unable(hg: Harness) -> dict[str, str]:
    """Which nodes cannot run a stream, and why."""
    rows = await hg.sql("SELECT n.name, u.reason FROM headgate.unable u JOIN headgate.node n ON n.id = u.node")
    return {row["name"]: row["reason"] for row in rows}


async def test_a_stream_goes_to_the_node_that_has_its_connector(join: Join, plug: Plug) -> None:
    left, right = await join("left"), await join("right")
    plug(source(), "right")
    await right.apply(orders={"source": {"type": "special"}, "sink": postgres(right.url)})
    await right.until_owners(orders="right")
    await right.until("orders", status="RUNNING", running=1)
    await more_rows(right, "target")
    assert list(await unable(left)) == ["left"]
    assert "connector 'special' does not exist" in (await unable(left))["left"]
    await stop(right)
    assert is_whole(await right.ids())


async def test_a_stream_goes_to_the_node_that_can_read_its_secret(join: Join) -> None:
    left = await join("left", keyring=Keyring.load(new_master_key(), None))
    right = await join("right")
    await right.node.registry.set_secret("warehouse", right.url, "tester")
    await right.apply(
        orders={"source": generator(), "mapping": IDS, "sink": postgres({"$secret": "warehouse"})}  # type: ignore[arg-type]
    )
    await right.until_owners(orders="right")
    await more_rows(right, "target")
    assert "cannot be decrypted here" in (await unable(left))["left"]


async def test_a_stream_goes_to_the_node_whose_registry_names_it(join: Join, tmp_path: Path) -> None:
    file = tmp_path / "registry.yaml"
    mine = {"source": generator(), "sink": BLACKHOLE}
    file.write_text(yaml.safe_dump({"datasources": {"mine": mine}}))
    left, right = await join("left", registry=f"yaml:{file}"), await join("right")
    await left.until("mine", status="RUNNING")
    await right.apply(orders=mine)
    await right.until_owners(orders="right")
    await right.until("orders", status="RUNNING")
    await right.drain()

    async def is_declined() -> bool:
        return "left" in await unable(left) and (await left.owners())["orders:0"] is None

    await left.until_true(is_declined)
    assert "does not name the datasource" in (await unable(left))["left"]
    file.write_text(yaml.safe_dump({"datasources": {"mine": mine, "orders": mine}}))
    await left.until_owners(orders="left")
    await left.until("orders", status="RUNNING")


class Wrong(Counting):
    """Cannot be opened while it is broken."""

    is_broken = True
    opened = 0

    async def open(self, position: Any) -> None:
        type(self).opened += 1
        if self.is_broken:
            raise ConnectorError("no such topic", cause=Cause.CONFIG)
        await super().open(position)


@pytest.mark.parametrize("how", ["restart", "publish", "start"])
async def test_a_stream_that_nobody_can_run_is_free_and_says_why_until_somebody_asks_for_another_try(
    join: Join, plug: Plug, how: str
) -> None:
    kind = type("Wrong", (Wrong,), {})
    plug(source(kind))
    left, right = await join("left"), await join("right")
    await left.apply(orders={"source": {"type": "special"}, "sink": BLACKHOLE})

    async def has_been_tried() -> bool:
        return set(await unable(left)) == {"left", "right"}

    await left.until_true(has_been_tried)
    await left.until_owners(orders=None)
    state = await left.until("orders", status="ERROR", detail="quarantined")
    assert state["error"] == {
        "cause": "config",
        "message": "no such topic",
        "next_try_at_s": None,
        "awaits_return": False,
    }
    assert kind.opened == 2
    for hg in (left, right):
        assert await hg.node.placement.grant([]) == {}
        manager = hg.node.manager
        assert manager is not None
        await hg.until_true(lambda: not manager.handles())  # noqa: B023 - It is called at once.

    kind.is_broken = False
    if how == "restart":
        await right.node.registry.restart("orders", "tester")
    elif how == "start":
        await right.node.registry.set_enabled("orders", False, "tester")
        await right.node.registry.set_enabled("orders", True, "tester")
    else:
        await right.apply(orders={"source": {"type": "special"}, "sink": BLACKHOLE, "description": "mended"})
    await right.until("orders", status="RUNNING")
    assert (await right.owners())["orders:0"] is not None


async def test_a_node_that_joins_tries_what_nobody_could_run(join: Join, plug: Plug) -> None:
    left = await join("left")
    plug(source(), "")
    await left.apply(orders={"source": {"type": "special"}, "sink": BLACKHOLE})
    await left.until("orders", status="RUNNING")
    plug(source(Wrong), "left")
    await left.node.registry.restart("orders", "tester")
    await left.until("orders", status="ERROR", detail="quarantined")
    right = await join("right")
    await right.until_owners(orders="right")
    await right.until("orders", status="RUNNING")


# Positions and identities.


async def fall_behind(hg: Harness) -> int:
    """As if the last checkpoints had been lost: the registry is behind the sink. Returns where the sink stands."""
    await hg.sql(
        "UPDATE headgate.stream SET commits = commits - 5, position = ((position #>> '{}')::bigint - 5)::text::json"
    )
    return (await hg.ids())[-1]


async def test_a_sink_that_is_ahead_of_the_registry_is_right_on_whichever_node(join: Join) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(orders=into(left, batch=1))
    await left.until_rows(20)
    await stop(left)
    await fall_behind(left)
    await left.drain()
    await start(right)
    await right.until_owners(orders="right")
    await more_rows(right, "target")
    assert is_whole(await right.ids())


async def test_an_edited_position_wins_over_a_sink_that_is_ahead(join: Join) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(orders=into(left, batch=1))
    await left.until_rows(20)
    with pytest.raises(Refused, match="is running on left"):
        await right.node.streams.edit("orders:0", 10, "ada")
    await stop(left)
    last = await fall_behind(left)
    edited = await right.node.streams.edit("orders:0", 10, "ada")
    assert edited.before == last - 5
    await start(right)
    await right.until_rows(2 * last)
    await stop(right)
    counts = Counter(await right.ids())
    assert {counts[number] for number in range(11)} == {1}
    assert {counts[number] for number in range(11, last + 1)} == {2}, "read again, as asked"
    assert {counts[number] for number in range(last + 1, max(counts) + 1)} == {1}
    assert ("edited", "ada") in await right.history("orders")
    assert "position_edited" in await right.events("orders")


async def test_an_undone_edit_goes_on_as_if_nothing_had_been(join: Join) -> None:
    left = await join("left")
    await left.apply(orders=into(left, batch=1))
    await left.until_rows(20)
    await stop(left)
    await left.node.streams.edit("orders:0", 3, "ada")
    await left.node.streams.undo_edit("orders:0", "ada")
    await start(left)
    await more_rows(left, "target")
    await stop(left)
    assert is_whole(await left.ids())


async def test_an_edit_wakes_a_stream_that_had_come_to_its_end(join: Join) -> None:
    left = await join("left")
    await left.apply(orders=into(left, rate=None, count=100))
    await left.until("orders", status="STOPPED", detail="finished")
    await left.until_owners(orders=None)
    await left.node.streams.edit("orders:0", 89, "ada")
    await left.until_rows(109)
    assert Counter(await left.ids()) == Counter([*range(100), *range(90, 100)])


async def test_sink_a_then_b_then_a_on_changing_nodes_neither_loses_nor_repeats(join: Join) -> None:
    """A's own old position must not win over the registry's, whoever opens it."""
    left, right = await join("left"), await join("right")
    nodes = {"left": left, "right": right}
    await left.apply(orders=into(left, "a"))
    await more_rows(left, "a")
    for version, (table, away, here) in enumerate((("b", "left", "right"), ("a", "right", "left")), 2):
        await left.apply(orders=into(left, table))
        await left.until("orders", running=version, version=version, status="RUNNING")
        await nodes[away].drain()
        await left.until_owners(orders=here)
        await more_rows(left, table)
        await nodes[away].drain(False)
    await stop(left)
    assert is_whole(sorted(await left.ids("a") + await left.ids("b")))


async def test_another_source_begins_at_nothing_once_and_the_next_node_goes_on_in_it(join: Join) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(orders=into(left, batch=1))
    await left.until_rows(20)
    await left.apply(orders=into(left, batch=1, seed=7))
    await left.until("orders", running=2, version=2, status="RUNNING")
    await left.drain()
    await left.until_owners(orders="right")
    await more_rows(left, "target")
    await stop(right)
    assert (await right.events("orders")).count("position_reset") == 1
    counts = Counter(await right.ids())
    assert set(counts) == set(range(max(counts) + 1))
    assert set(counts.values()) <= {1, 2}, "each source once"
    assert counts[0] == 2
    assert (await right.node.streams.find("orders:0")).generation == 1
