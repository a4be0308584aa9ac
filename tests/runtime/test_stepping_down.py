"""Holders that are told to step down and do not, and consumers that hang on a node by no connection."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from headgate.connectors.api import Batch, Connector, Context, Options, SourceKind
from headgate.core import lifecycle, patience
from headgate.core.groups import delivery
from headgate.core.groups.requests import Joined
from headgate.core.patience import StandingOrder
from headgate.errors import StoreError
from headgate.runtime.groups import listener
from headgate.runtime.groups.listener import Session
from headgate.runtime.streams import manager
from headgate.runtime.streams.manager import WorkerManager
from tests.runtime.conftest import BLACKHOLE, IDS, Harness, generator, postgres

Join: TypeAlias = Callable[..., Awaitable[Harness]]


async def move(hg: Harness, name: str, node: str) -> None:
    """As an operator does."""
    found = await hg.node.streams.find(f"{name}:0")
    await hg.node.placement.move(found, await hg.node.nodes.find(node), "tester")
    hg.node.waker.wake("streams")


async def unable(hg: Harness) -> dict[str, str]:
    """Which nodes cannot run a stream, and why."""
    rows = await hg.sql("SELECT n.name, u.reason FROM headgate.unable u JOIN headgate.node n ON n.id = u.node")
    return {row["name"]: row["reason"] for row in rows}


def is_whole(ids: list[int]) -> bool:
    return ids == list(range(len(ids)))


async def test_an_observer_takes_a_stream_from_a_node_that_does_not_even_try_to_step_down(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream, never the node: what else it runs goes on."""
    monkeypatch.setattr(patience, "STOP_S", 0.5)
    left = await join("left", lease_s=3.0)
    await left.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(left.url)})
    await left.apply(views={"source": generator(), "mapping": IDS, "sink": postgres(left.url, "views")})
    await left.until_rows(10)
    await left.until_rows(10, "views")
    for name in ("orders", "views"):
        await move(left, name, "left")
    right = await join("right", lease_s=3.0)
    before = await left.node.streams.find("views:0")
    incarnation = left.node.incarnation
    real = WorkerManager.give_back

    def is_deaf(manager: WorkerManager, handle: Any) -> None:
        if manager is not left.node.manager:
            real(manager, handle)

    monkeypatch.setattr(WorkerManager, "give_back", is_deaf)
    await move(right, "orders", "right")
    await right.until_owners(orders="right")
    await right.until_rows(len(await right.ids()) + 10)
    assert await unable(right) == {"left": "it did not step down in time"}
    assert [kind for kind, _ in await right.history("orders")].count("revoked") == 1
    after = await left.node.streams.find("views:0")
    assert (after.run, after.epoch, after.node) == (before.run, before.epoch, "left")
    assert left.node.incarnation == incarnation
    await left.until_true(lambda: not _runs(left, "orders:0"))
    await right.node.registry.set_enabled("orders", False, "tester")
    await right.until("orders", status="STOPPED")
    assert is_whole(await right.ids())


def _runs(hg: Harness, stream: str) -> bool:
    return any(handle.name == stream for handle in hg.node.manager.handles())  # type: ignore[union-attr]


class Nothing(Options):
    """No options."""


class Quiet:
    """A source that has nothing to say."""

    def __init__(self, options: Nothing, context: Context) -> None: ...

    async def check(self) -> None: ...

    async def open(self, position: Any) -> None: ...

    async def read(self) -> Batch:
        await asyncio.Event().wait()
        raise AssertionError

    async def ack(self, position: Any) -> None: ...

    async def close(self) -> None: ...


async def test_a_run_that_has_nothing_to_write_learns_that_its_stream_was_taken(
    join: Join, plug: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "OWNED_S", 0.1)
    plug(Connector("quiet", "Says nothing", source=SourceKind(Nothing, Quiet)))
    left = await join("left")
    await left.apply(orders={"source": {"type": "quiet"}, "sink": BLACKHOLE})
    await left.apply(views={"source": {"type": "quiet"}, "sink": BLACKHOLE})
    for name in ("orders", "views"):
        await left.until(name, status="RUNNING")
    found = await left.node.streams.find("orders:0")
    assert found.owner is not None
    assert await left.node.placement.take(StandingOrder(found.id, found.owner, found.epoch, 5.0))
    await left.until_true(lambda: not _runs(left, "orders:0"))
    assert _runs(left, "views:0")


class Stubborn:
    """A source that counts, and when it is told to stop, does not."""

    let_go = asyncio.Event()

    def __init__(self, options: Any = None, context: Context | None = None) -> None:
        self._next = 0

    async def check(self) -> None:
        pass

    async def parts(self) -> list[str]:
        return [""]

    async def open(self, position: Any) -> None:
        self._next = 0 if position is None else position + 1

    async def read(self) -> Batch:
        while True:
            try:
                await asyncio.sleep(0.005)
                self._next += 1
                return Batch([{"id": self._next - 1}], self._next - 1)
            except asyncio.CancelledError:
                await self.let_go.wait()
                raise

    async def ack(self, position: Any) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_a_holder_abandons_a_run_that_does_not_stop_and_the_stream_goes_on_elsewhere(
    join: Join, plug: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector that holds on to its cancellation for ever."""
    monkeypatch.setattr(lifecycle.transitions, "CANCEL_S", 0.2)
    monkeypatch.setattr(lifecycle.transitions, "STOP_S", 0.5)
    kind = type("Stubborn", (Stubborn,), {"let_go": asyncio.Event()})
    plug(Connector("stubborn", "stubborn", source=SourceKind(Nothing, kind)))
    left = await join("left")
    await left.apply(orders={"source": {"type": "stubborn"}, "sink": postgres(left.url)})
    await left.until_rows(10)
    right = await join("right")
    await move(left, "orders", "right")
    await right.until_owners(orders="right")
    await right.until_rows(len(await right.ids()) + 10)
    kind.let_go.set()  # type: ignore[attr-defined]
    await right.until_rows(len(await right.ids()) + 10)
    await right.node.registry.set_enabled("orders", False, "tester")
    await right.until("orders", status="STOPPED")
    assert is_whole(await right.ids())


# Consumers of groups that hang on a node by nothing.


class Program:
    """What a program was told."""

    has_more = False

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def active(self, consumer: UUID, incarnation: int, epoch: int, partition: int | None) -> None:
        self.told.append(("active", epoch))

    def step_down(self, consumer: UUID, incarnation: int, epoch: int) -> None:
        self.told.append(("step_down", epoch))

    def fail(self, code: str, text: str) -> None:
        self.told.append((code, 0))


async def join_group(hg: Harness, program: Program, consumer: UUID | None = None) -> tuple[Session, Joined]:
    session = Session(program)
    id = str(consumer) if consumer else None
    return session, await hg.node.groups.join(session, "invoices", "group", None, "somebody", id, 2.0)


async def statuses(hg: Harness) -> list[str]:
    found = await hg.node.group_rows.all("invoices", "group")
    return [f"{m.connectivity} {m.activity}" for one in found for m in one.members]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that look often, and wait a moment only."""
    monkeypatch.setattr(listener, "LOOK_S", 0.05)
    monkeypatch.setattr(delivery, "ADRIFT_S", 0.3)


@pytest.mark.parametrize("how", ["it joins", "it comes back"])
async def test_a_program_whose_coming_was_written_down_but_not_heard_of_does_not_hold_its_group_up(
    hg: Harness, hasty: None, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The database took it, and its answer was lost. The program has gone since, and another waits."""
    groups = hg.node.group_rows
    consumer: UUID | None = None
    if how == "it comes back":
        session, joined = await join_group(hg, Program())
        await hg.node.groups.confirm(session, joined.consumer, 1, is_active=True)
        consumer = joined.consumer
    real: Any = groups.join if how == "it joins" else groups.rejoin

    async def is_lost(*args: Any, **named: Any) -> Any:
        await real(*args, **named)
        raise StoreError("the answer was lost")

    monkeypatch.setattr(groups, real.__name__, is_lost)
    with pytest.raises(StoreError):
        await join_group(hg, Program(), consumer)
    monkeypatch.setattr(groups, real.__name__, real)
    if consumer is not None:
        hg.node.groups.closed(session)
    assert await statuses(hg) == ["connected active"]
    waiting = Program()
    session, joined = await join_group(hg, waiting)

    async def is_active() -> bool:
        hg.node.groups.may_echo(session)
        return any(what == "active" for what, _ in waiting.told)

    await hg.until_true(is_active)
    assert (await statuses(hg))[-1] == "connected active"


async def test_whoever_hangs_here_by_a_connection_stays(hg: Harness, hasty: None) -> None:
    program = Program()
    session, _ = await join_group(hg, program)
    looks = 0

    async def has_been_looked_at() -> bool:
        nonlocal looks
        hg.node.groups.may_echo(session)
        looks += 1
        return looks > 50

    await hg.until_true(has_been_looked_at)
    assert await statuses(hg) == ["connected active"]
    assert set(program.told) == {("active", 1)}


async def test_a_node_that_begins_anew_tells_nobody_of_its_past_that_all_is_well(hg: Harness, hasty: None) -> None:
    """Others have taken its consumers for silent, and wait for the end of their lease only."""
    program = Program()
    session, _ = await join_group(hg, program)
    assert hg.node.groups.may_echo(session)
    before = hg.node.incarnation
    await hg.node.nodes.end(before)

    async def begins_anew() -> bool:
        return hg.node.incarnation != before and hg.node.trust_left_s() > 0.0

    await hg.until_true(begins_anew)
    assert not hg.node.groups.may_echo(session)
    assert program.told[-1][0] in ("not_ready", "replaced")


async def test_what_an_ended_incarnation_held_is_gone_with_it(hg: Harness, hasty: None) -> None:
    """It refers to itself in circles, which the collector of a node would find hours later."""
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await hg.until("orders", status="RUNNING")
    ended = weakref.ref(hg.node.manager)
    gc.disable()
    try:
        await hg.node.nodes.end(hg.node.incarnation)

        async def is_gone() -> bool:
            return ended() is None

        await hg.until_true(is_gone)
    finally:
        gc.enable()
