"""The worker manager on a real database: what people do, and what goes wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headgate.connectors.api import Batch, Connector, Context, Options, SinkKind, SourceKind
from headgate.core import lifecycle
from headgate.errors import Cause, ConnectorError, NotConnected, Refused, StoreError
from headgate.runtime.streams import checkpoints
from tests.proxy import proxied
from tests.runtime.conftest import BLACKHOLE, IDS, Harness, generator, postgres, running_node


def no_gap_no_repeat(ids: list[int]) -> bool:
    """Whether these are 0, 1, 2, … or 1, 2, 3, …"""
    return ids == list(range(ids[0], ids[0] + len(ids))) and ids[0] in (0, 1)


# Start, stop, restart.


async def test_a_published_datasource_runs_and_a_stopped_one_does_not(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until("orders", status="RUNNING", running=1)
    await hg.until_rows(10)
    await hg.node.registry.set_enabled("orders", False, "tester")
    await hg.until("orders", status="STOPPED")
    await hg.until_owners(orders=None)
    before = await hg.ids()
    row = (await hg.sql("SELECT commits, position FROM headgate.stream"))[0]
    assert int(row["position"]) == before[-1] or int(row["position"]) + 1 == before[-1]
    await hg.node.registry.set_enabled("orders", True, "tester")
    await hg.until_rows(len(before))
    assert no_gap_no_repeat(await hg.ids())


async def test_start_stop_restart_and_reload_twice_are_once(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until("orders", status="RUNNING", running=1)
    epoch = (await hg.sql("SELECT epoch FROM headgate.stream"))[0]["epoch"]
    for _ in range(3):
        await hg.node.registry.set_enabled("orders", True, "tester")
        await hg.node.registry.reload("orders", "tester")
    await hg.until_rows(len(await hg.ids()) + 20)
    assert (await hg.sql("SELECT epoch FROM headgate.stream"))[0]["epoch"] == epoch
    await hg.node.registry.restart("orders", "tester")

    async def regranted() -> bool:
        return bool((await hg.sql("SELECT epoch FROM headgate.stream"))[0]["epoch"] == epoch + 1)

    await hg.until_true(regranted)
    await hg.until("orders", status="RUNNING")
    assert (await hg.events("orders")).count("started") == 0


async def test_a_deleted_datasource_leaves_nothing_behind_and_its_name_is_free(hg: Harness) -> None:
    document = {"source": generator(), "mapping": IDS, "sink": postgres(hg.url)}
    await hg.apply(orders=document)
    await hg.until_rows(3)
    await hg.node.registry.delete("orders", "tester")

    async def gone() -> bool:
        await hg.node.registry.datasources.purge()
        return not await hg.sql("SELECT FROM headgate.stream")

    await hg.until_true(gone)
    await hg.sql("TRUNCATE target")
    await hg.apply(orders=document)
    await hg.until_rows(3)
    assert (await hg.ids())[0] in (0, 1)  # Another datasource: it begins at the beginning.


async def test_a_source_that_ends_is_finished_and_stays_so(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(rate=None, count=1000), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until("orders", status="STOPPED", detail="finished", running=1)
    assert len(await hg.ids()) == 1000
    await hg.node.registry.reload("orders", "tester")
    await asyncio.sleep(0.2)
    assert len(await hg.ids()) == 1000


async def test_changes_are_found_without_wake_ups(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.store.wake.Waker.wake", lambda self, topic, number=0: None)
    async with running_node(url, tmp_path / "home") as hg:
        await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
        await hg.until("orders", status="RUNNING")


# Versions.


async def test_a_new_version_is_swapped_in_without_a_gap_or_a_repeat(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until("orders", status="RUNNING", running=1)
    await hg.until_rows(20)
    for version in (2, 3, 4):
        mapping = {"set": {"id": "id"}, "where": f"id != -{version}"}
        await hg.apply(orders={"source": generator(), "mapping": mapping, "sink": postgres(hg.url)})
        await hg.until("orders", status="RUNNING", running=version, version=version)
    await hg.until_rows(len(await hg.ids()) + 20)
    assert no_gap_no_repeat(await hg.ids())


async def test_a_version_whose_check_fails_is_rejected_and_the_old_one_is_not_disturbed(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until("orders", status="RUNNING", running=1)
    epoch = (await hg.sql("SELECT epoch FROM headgate.stream"))[0]["epoch"]
    await hg.apply(orders={"source": generator(), "sink": {**postgres(hg.url, "absent"), "create": False}})

    async def rejected() -> bool:
        found = await hg.node.registry.get("orders")
        version = await hg.node.registry.datasources.version(found.id, 2)
        return (
            version is not None
            and version.status == "rejected"
            and "table absent does not exist" in (version.reason or "")
        )

    await hg.until_true(rejected)
    assert (await hg.sql("SELECT epoch FROM headgate.stream"))[0]["epoch"] == epoch
    await hg.until("orders", status="RUNNING", running=1, version=1)


async def test_a_version_that_fails_on_trial_is_rejected_and_the_old_one_goes_on(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until("orders", status="RUNNING", running=1)
    await hg.until_rows(5)
    broken = {"set": {"id": "id", "no_such_column": "id"}}
    strict = {**postgres(hg.url), "schema": {"new_fields": "fail"}}
    await hg.apply(orders={"source": generator(), "mapping": broken, "sink": strict})

    async def rejected() -> bool:
        return "rejected" in await hg.events("orders")

    await hg.until_true(rejected)
    await hg.until("orders", status="RUNNING", running=1, version=1)
    await hg.until_rows(len(await hg.ids()) + 10)
    assert no_gap_no_repeat(await hg.ids())
    # Adding the column and restarting gives it another chance.
    await hg.sql("ALTER TABLE target ADD COLUMN no_such_column bigint")
    await hg.node.registry.restart("orders", "tester")
    await hg.until("orders", status="RUNNING", running=2, version=2)
    assert no_gap_no_repeat(await hg.ids())


async def test_a_sink_that_is_away_rejects_nothing_and_is_tried_again(hg: Harness) -> None:
    async with proxied(hg.url) as (proxy, through):
        await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(through)})
        await hg.until("orders", status="RUNNING", running=1)
        proxy.refuse = True
        proxy.cut()
        state = await hg.until("orders", status="ERROR", detail="backing off")
        assert state["error"]["cause"] == "network"
        proxy.refuse = False
        await hg.until("orders", status="RUNNING")
        await hg.until_rows(len(await hg.ids()))
        assert no_gap_no_repeat(await hg.ids())


async def test_a_rollback_publishes_the_old_content_under_a_new_number(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await hg.apply(orders={"source": generator(rate=100), "sink": BLACKHOLE})
    version = await hg.node.registry.rollback("orders", 1, "tester", is_admin=True)
    assert version.number == 3
    assert version.content.source["rate"] == 200
    await hg.until("orders", status="RUNNING", running=3)


# Identity of source and sink.


async def test_another_source_by_publish_begins_at_nothing_and_says_so(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until_rows(5)
    await hg.apply(orders={"source": generator(seed=7), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until("orders", running=2, status="RUNNING")
    assert "position_reset" in await hg.events("orders")
    await hg.until_rows(len(await hg.ids()) + 3)
    assert len(await hg.ids()) > len(set(await hg.ids()))  # It counts from the beginning again, as asked.


async def test_going_back_to_an_earlier_sink_does_not_go_back_in_the_source(hg: Harness) -> None:
    """Sink A → B → A: A's own old position must not win over the registry's."""
    for table in ("a", "b", "a"):
        await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url, table)})
        await hg.until_rows(len(await hg.ids(table)) + 5, table)
    await hg.node.registry.set_enabled("orders", False, "tester")
    await hg.until("orders", status="STOPPED")
    assert no_gap_no_repeat(sorted(await hg.ids("a") + await hg.ids("b")))


# Secrets.


async def test_a_missing_secret_is_an_error_and_nothing_starts_until_it_is_there(hg: Harness) -> None:
    await hg.node.registry.set_secret("warehouse", hg.url, "tester")
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres({"$secret": "warehouse"})})  # type: ignore[arg-type]
    await hg.until("orders", status="RUNNING")
    await hg.sql("DELETE FROM headgate.secret")
    await hg.node.registry.restart("orders", "tester")
    state = await hg.until("orders", status="ERROR", detail="quarantined")
    assert state["error"]["cause"] == "config"
    assert "secret 'warehouse' does not exist" in state["error"]["message"]
    await hg.node.registry.set_secret("warehouse", hg.url, "tester")
    await hg.until("orders", status="RUNNING")


async def test_a_secret_in_use_cannot_be_deleted(hg: Harness) -> None:
    await hg.node.registry.set_secret("warehouse", hg.url, "tester")
    await hg.apply(orders={"source": generator(), "sink": postgres({"$secret": "warehouse"})})  # type: ignore[arg-type]
    with pytest.raises(Refused, match="in use"):
        await hg.node.registry.delete_secret("warehouse", "tester")


# Connectors that misbehave.


class Nothing(Options):
    """No options."""


class Misbehaving:
    """A source and sink whose methods can be replaced."""

    def __init__(self, options: Any = None, context: Context | None = None) -> None:
        pass

    async def check(self) -> None:
        pass

    async def parts(self) -> list[str]:
        return [""]

    async def open(self, position: Any) -> Any:
        return None

    async def read(self) -> Batch:
        await asyncio.sleep(0.01)
        return Batch([{"id": 1}], 1)

    async def ack(self, position: Any) -> None:
        pass

    async def write(self, batch: Any) -> None:
        pass

    async def close(self) -> None:
        pass


def connector(name: str, kind: type) -> Connector:
    return Connector(name, name, source=SourceKind(Nothing, kind), sink=SinkKind(Nothing, kind))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines short enough for a test."""
    monkeypatch.setattr(lifecycle.transitions, "CANCEL_S", 0.3)
    monkeypatch.setattr(lifecycle.transitions, "STOP_S", 0.8)


@pytest.mark.parametrize("where", ["read", "write", "open", "close"])
@pytest.mark.usefixtures("quick")
async def test_stop_wins_even_if_the_connector_hangs_and_ignores_being_cancelled(
    hg: Harness, plug: Any, where: str
) -> None:
    release, hanging = asyncio.Event(), asyncio.Event()

    async def hang(self: Any, *args: Any) -> Any:
        hanging.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        raise asyncio.CancelledError

    plug(connector("hangs", type("Hangs", (Misbehaving,), {where: hang})))
    sides = {"source": {"type": "generator"}, "sink": BLACKHOLE}
    sides["sink" if where == "write" else "source"] = {"type": "hangs"}
    await hg.apply(orders=sides)
    if where != "close":
        await hanging.wait()
    else:
        await hg.until("orders", status="RUNNING")
    await hg.node.registry.set_enabled("orders", False, "tester")
    await hg.until("orders", status="STOPPED")
    await hg.until_owners(orders=None)
    release.set()
    await hg.until_true(lambda: not hg.node.manager.handles())  # type: ignore[union-attr]


@pytest.mark.usefixtures("quick")
async def test_a_stop_gives_back_what_an_abandoned_acquisition_got_after_all(
    hg: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is slow to answer and the stop does not wait for it; then the answer is yes, and is lost."""
    real, asked, answer = hg.node.streams.apply, asyncio.Event(), asyncio.Event()

    async def slow(node: UUID, commands: Any) -> Any:
        if asked.is_set():
            return await real(node, commands)
        asked.set()
        await answer.wait()
        await real(node, commands)
        raise StoreError("the connection was lost")

    monkeypatch.setattr(hg.node.streams, "apply", slow)
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await asked.wait()
    (handle,) = hg.node.manager.handles()  # type: ignore[union-attr]
    await hg.node.registry.set_enabled("orders", False, "tester")
    await hg.until_true(lambda: isinstance(handle.state.phase, lifecycle.Idle))
    answer.set()

    async def is_given_back() -> bool:
        row = (await hg.sql("SELECT owner, epoch FROM headgate.stream"))[0]
        return row["owner"] is None and row["epoch"] > 1

    await hg.until_true(is_given_back)
    await hg.node.registry.set_enabled("orders", True, "tester")
    await hg.until("orders", status="RUNNING")


async def test_a_bug_is_tried_again_until_its_budget_is_spent(
    hg: Harness, plug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.core.backoff.FIRST_S", 0.001)
    monkeypatch.setattr("headgate.core.backoff.LONGEST_S", 0.002)
    opened = 0

    class Buggy(Misbehaving):
        async def open(self, position: Any) -> Any:
            nonlocal opened
            opened += 1
            raise KeyError("surprise")

    plug(connector("buggy", Buggy))
    await hg.apply(orders={"source": {"type": "buggy"}, "sink": BLACKHOLE})
    state = await hg.until("orders", status="ERROR", detail="quarantined")
    assert (state["error"]["cause"], state["error"]["message"]) == ("bug", "KeyError: 'surprise'")
    assert opened == 11
    await hg.node.registry.restart("orders", "tester")
    await hg.until_true(lambda: opened == 22)


@pytest.mark.parametrize("cause", [Cause.CONFIG, Cause.AUTH])
async def test_a_wrong_configuration_is_not_tried_again_blindly(hg: Harness, plug: Any, cause: Cause) -> None:
    opened = 0

    class Wrong(Misbehaving):
        async def open(self, position: Any) -> Any:
            nonlocal opened
            opened += 1
            raise ConnectorError("no", cause=cause)

    plug(connector("wrong", Wrong))
    await hg.apply(orders={"source": {"type": "wrong"}, "sink": BLACKHOLE})
    await hg.until("orders", status="ERROR", detail="quarantined")
    await asyncio.sleep(0.3)
    assert opened == 1


async def test_a_connector_that_blocks_its_thread_does_not_hold_up_the_node(hg: Harness, plug: Any) -> None:
    import threading

    release = threading.Event()

    class Blocking:
        """Plain methods that block: `runs="thread"`."""

        def __init__(self, options: Any, context: Context) -> None:
            self.made = 0

        def check(self) -> None: ...
        def parts(self) -> list[str]:
            return [""]

        def open(self, position: Any) -> None:
            self.made = position or 0

        def read(self) -> Batch:
            if self.made == 3:
                release.wait()
            self.made += 1
            return Batch([{"id": self.made}], self.made)

        def ack(self, position: Any) -> None: ...
        def close(self) -> None: ...

    plug(Connector("blocking", "blocking", source=SourceKind(Nothing, Blocking), runs="thread"))
    await hg.apply(
        orders={"source": {"type": "blocking"}, "sink": postgres(hg.url)},
        other={"source": generator(), "sink": BLACKHOLE},
    )
    await hg.until("other", status="RUNNING")
    await hg.until_rows(2)
    release.set()
    await hg.until_rows(10)
    assert no_gap_no_repeat((await hg.ids())[:10])


async def test_what_a_connector_reads_ahead_is_bounded(hg: Harness, plug: Any) -> None:
    reads, gate = 0, asyncio.Event()

    class Eager(Misbehaving):
        async def read(self) -> Batch:
            nonlocal reads
            reads += 1
            return Batch([{"id": reads}], reads)

    class Slow(Misbehaving):
        async def write(self, batch: Any) -> None:
            await gate.wait()

    plug(connector("eager", Eager))
    plug(connector("slow", Slow))
    await hg.apply(orders={"source": {"type": "eager"}, "sink": {"type": "slow"}})
    await hg.until("orders", status="RUNNING")
    await asyncio.sleep(0.2)
    assert reads == 2  # One in the sink, one ahead.
    gate.set()


async def test_a_record_is_acknowledged_only_after_it_is_durable(hg: Harness, plug: Any) -> None:
    order: list[tuple[str, Any]] = []

    class Source(Misbehaving):
        made = 0

        async def read(self) -> Batch:
            await asyncio.sleep(0.005)
            self.made += 1
            return Batch([{"id": self.made}], self.made)

        async def ack(self, position: Any) -> None:
            order.append(("ack", position))

    class Sink(Misbehaving):
        async def write(self, batch: Any) -> None:
            await asyncio.sleep(0.005)
            order.append(("durable", batch.progress.position))

    plug(Connector("s", "s", source=SourceKind(Nothing, Source), sink=SinkKind(Nothing, Sink)))
    await hg.apply(orders={"source": {"type": "s"}, "sink": {"type": "s"}})
    await hg.until_true(lambda: len(order) > 20)
    pairs = list(zip(order[0::2], order[1::2], strict=False))
    assert all(first == ("durable", n) and second == ("ack", n) for n, (first, second) in enumerate(pairs, 1))


async def test_a_source_that_asks_for_patience_is_left_alone_within_its_run(hg: Harness, plug: Any) -> None:
    from headgate.errors import RetryLater

    calls = 0

    class Limited(Misbehaving):
        async def read(self) -> Batch:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise RetryLater("slow down", after_s=0.05)
            return await super().read()

    plug(connector("limited", Limited))
    await hg.apply(orders={"source": {"type": "limited"}, "sink": BLACKHOLE})
    await hg.until("orders", status="RUNNING", running=1)
    assert (await hg.state("orders"))["reported"]["restarts"] == 0


# The node itself.


async def test_a_node_that_was_taken_for_dead_begins_anew_with_nothing(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until_rows(5)
    before = hg.node.incarnation
    from headgate.core.lease import Expired

    beat = (await hg.sql("SELECT beat FROM headgate.node WHERE id = $1", before))[0]["beat"]
    while await hg.node.nodes.expire(Expired(before, beat)) is None:
        beat = (await hg.sql("SELECT beat FROM headgate.node WHERE id = $1", before))[0]["beat"]
    await hg.until_true(lambda: hg.node.incarnation != before)
    rows = len(await hg.ids())
    await hg.until_rows(rows + 5)
    assert no_gap_no_repeat(await hg.ids())
    assert [row["id"] for row in await hg.sql("SELECT id FROM headgate.node")] == [hg.node.incarnation]


async def test_an_ended_incarnation_can_claim_nothing(hg: Harness) -> None:
    from headgate.core.streams import Acquire, Fenced

    await hg.apply(orders={"enabled": False, "source": generator(), "sink": BLACKHOLE})
    stream = (await hg.sql("SELECT id FROM headgate.stream"))[0]["id"]
    ghost = UUID(int=1)
    steps = await hg.node.streams.apply(ghost, {stream: Acquire(ghost, UUID(int=2), 1, "s", "t", claims=True)})
    assert isinstance(steps[stream].reply, Fenced)
    assert (await hg.sql("SELECT owner FROM headgate.stream"))[0]["owner"] is None


async def test_while_the_database_is_away_streams_pause_and_then_go_on(url: str, tmp_path: Path) -> None:
    """The registry is away for longer than trust lasts; the sink is not. Nothing is written without trust."""
    async with (
        proxied(url) as (proxy, through),
        running_node(through, tmp_path / "home", lease_s=3.0, direct=url) as hg,
    ):
        await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(url)})
        await hg.until_rows(5)
        incarnation = hg.node.incarnation
        proxy.refuse = True
        proxy.cut()
        await hg.until_true(lambda: hg.node.trust_left_s() == 0.0)
        await asyncio.sleep(0.2)
        paused = await hg.ids()
        await asyncio.sleep(0.5)
        assert await hg.ids() == paused
        proxy.refuse = False
        await hg.until_rows(len(paused) + 5)
        assert no_gap_no_repeat(await hg.ids())
        assert hg.node.incarnation == incarnation  # Nobody was there to take it for dead.


async def test_a_fenced_checkpoint_stops_its_worker(hg: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_S", 0.1)
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await hg.until("orders", status="RUNNING", running=1)
    other = UUID(int=5)
    await hg.sql("INSERT INTO headgate.node (id, name, lease_s, version) VALUES ($1, 'other', 3600, '')", other)
    await hg.sql("UPDATE headgate.stream SET owner = $1, epoch = epoch + 1", other)

    async def lost() -> bool:
        return "worker_lost" in await hg.events("orders")

    await hg.until_true(lost)
    assert not hg.node.manager.handles()  # type: ignore[union-attr]
    assert (await hg.sql("SELECT owner FROM headgate.stream"))[0]["owner"] == other
    await hg.node.nodes.end(other)
    await hg.until("orders", status="RUNNING")


async def test_log_lines_of_a_stream_can_be_read_back_and_are_bounded(
    hg: Harness, plug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headgate.telemetry import logs

    logs.configure("json", hg.node.shipper.keep)
    monkeypatch.setattr("headgate.store.logs.KEEP", 50)

    class Chatty(Misbehaving):
        def __init__(self, options: Any, context: Context) -> None:
            self.log = context.log

        async def read(self) -> Batch:
            for number in range(100):
                self.log.info("chatter", number=number)
            await asyncio.sleep(60)
            raise NotConnected("never")

    plug(connector("chatty", Chatty))
    await hg.apply(orders={"source": {"type": "chatty"}, "sink": BLACKHOLE})
    found = await hg.node.registry.get("orders")

    async def lines() -> list[dict[str, Any]]:
        await hg.node.shipper.ship(hg.node.logs, hg.node.waker)
        return await hg.node.logs.after(found.id, 0)

    async def has_last() -> bool:
        return any(line.line.fields.get("number") == 99 for line in await lines())

    await hg.until_true(has_last)
    assert len(await lines()) <= 50
    assert (await lines())[-1].line.fields["stream"] == "orders:0"


# What nobody thought of.


@pytest.mark.parametrize("question", ["granted", "entries_since"])
async def test_an_order_is_not_lost_when_the_database_blinks_between_two_questions(
    hg: Harness, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """What was granted has been read, and then the database is away: all of it must be acted upon all the same."""
    await hg.apply(old={"source": generator(), "sink": BLACKHOLE})
    await hg.until("old", status="RUNNING", running=1)
    asked = hg.node.streams if question == "granted" else hg.node.registry.datasources
    real, failures = getattr(asked, question), 1

    async def blinking(*args: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreError("blink")
        return await real(*args)

    monkeypatch.setattr(asked, question, blinking)
    await hg.apply(
        old={"enabled": False, "source": generator(), "sink": BLACKHOLE}, new={"source": generator(), "sink": BLACKHOLE}
    )
    await hg.until("old", status="STOPPED")
    await hg.until("new", status="RUNNING")
    assert failures == 0


async def test_an_error_that_nobody_thought_of_does_not_leave_a_stream_starting_for_ever(
    hg: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = hg.node.registry.get_datasource_config, 1

    async def surprising(id: UUID, version: int) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise LookupError("nobody thought of this")
        return await real(id, version)

    monkeypatch.setattr(hg.node.registry, "get_datasource_config", surprising)
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await hg.until("orders", status="RUNNING")


async def test_a_batch_of_which_nothing_was_kept_proves_nothing(hg: Harness) -> None:
    """A version whose sink cannot work must not pass for proved because its mapping left everything out."""
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until("orders", status="RUNNING", running=1)
    broken = {"where": "id % 40 == 0", "set": {"id": "id", "no_such_column": "id"}}
    strict = {**postgres(hg.url), "schema": {"new_fields": "fail"}}
    await hg.apply(orders={"source": generator(), "mapping": broken, "sink": strict})

    async def rejected() -> bool:
        return "rejected" in await hg.events("orders")

    await hg.until_true(rejected)
    await hg.until("orders", status="RUNNING", running=1, version=1)


async def test_a_refused_login_is_survived(url: str, tmp_path: Path) -> None:
    """Somebody locks the role out and lets it in again: every loop of the node goes on."""
    role = f"role_{tmp_path.name.lower()[:20]}"
    async with running_node(url, tmp_path / "admin") as admin:
        await admin.sql(f"CREATE ROLE {role} SUPERUSER LOGIN")
    as_role = url.replace("headgate@", f"{role}@")
    async with running_node(as_role, tmp_path / "home", lease_s=3.0, direct=url) as hg:
        await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
        await hg.until_rows(5)
        await hg.sql(f"ALTER ROLE {role} NOLOGIN")
        await hg.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role)
        await hg.until_true(lambda: hg.node.trust_left_s() == 0.0)
        await hg.sql(f"ALTER ROLE {role} LOGIN")
        await hg.until_true(lambda: hg.node.trust_left_s() > 0.0)
        await hg.until_rows(len(await hg.ids()) + 5)
        await hg.apply(later={"source": generator(), "sink": BLACKHOLE})
        await hg.until("later", status="RUNNING")
        assert no_gap_no_repeat(await hg.ids())
    async with running_node(url, tmp_path / "admin") as admin:
        await admin.sql(f"DROP OWNED BY {role}")
        await admin.sql(f"DROP ROLE {role}")


async def test_whoever_blocks_in_its_sink_is_known_by_name(hg: Harness, plug: Any) -> None:
    """The beat must find out whose run it was, whichever method blocks."""
    from headgate.runtime.cluster import beat

    found: list[Any] = []

    class Curious(Misbehaving):
        async def open(self, grant: Any) -> Any:
            found.append(beat._labels.get(asyncio.current_task()))  # type: ignore[arg-type]

        async def write(self, batch: Any) -> None:
            found.append(beat._labels.get(asyncio.current_task()))  # type: ignore[arg-type]

    plug(connector("curious", Curious))
    await hg.apply(orders={"source": generator(), "sink": {"type": "curious"}})
    await hg.until("orders", status="RUNNING", running=1)
    assert len(found) >= 2
    assert {label.stream for label in found} == {"orders:0"}


async def test_a_position_or_a_message_that_cannot_be_written_down_harms_only_its_own_stream(
    hg: Harness, plug: Any
) -> None:
    class Odd(Misbehaving):
        async def read(self) -> Batch:
            return Batch([{"id": 1}], {"file": "not utf-8: \udcff"})

    class Rude(Misbehaving):
        async def open(self, position: Any) -> Any:
            raise ConnectorError("nul \0 and \udcff", cause=Cause.CONFIG)

    plug(connector("odd", Odd))
    plug(connector("rude", Rude))
    await hg.apply(
        odd={"source": {"type": "odd"}, "sink": BLACKHOLE},
        rude={"source": {"type": "rude"}, "sink": BLACKHOLE},
        good={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)},
    )
    await hg.until("odd", status="ERROR")
    state = await hg.until("rude", status="ERROR", detail="quarantined")
    assert state["error"]["message"] == "nul \\0 and \\udcff"
    await hg.until("good", status="RUNNING", running=1)
    await hg.until_rows(10)
