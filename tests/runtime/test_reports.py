"""Reports of streams: what is written again, and what is not."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from headgate.connectors.api import Backlog
from headgate.runtime.streams import reporter
from headgate.runtime.streams.reporter import ROUNDS
from headgate.store.inbox import Limit, Payload
from tests.runtime.conftest import BLACKHOLE, Harness


@pytest.fixture
async def stream(hg: Harness) -> UUID:
    """A stream of which one record has become durable, and that rests since."""
    await hg.apply(orders={"source": {"type": "webhook"}, "sink": BLACKHOLE})
    await hg.until("orders", status="RUNNING")
    found = await hg.node.registry.get("orders")
    await hg.node.inbox.append([Payload(found.id, "{}", b'{"id": 1}')], {found.id: Limit()})
    hg.node.inboxes.look()
    assert hg.node.manager is not None
    (handle,) = hg.node.manager.handles()
    await hg.until_true(lambda: handle.totals.written == 1)
    return handle.stream


async def test_what_moved_is_written_once_and_then_rests(
    hg: Harness, stream: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of streams that have a record now and then are mostly at rest: a look at each of them is no news."""
    registry, manager, written = hg.node.registry, hg.node.manager, Counter[UUID]()
    assert manager is not None
    update = registry.update_state

    async def counted(node: UUID, states: Any) -> set[UUID]:
        written.update(state.stream for state in states)
        return await update(node, states)

    reports = manager._reporter
    await reports.write(await reports._with_figures())
    monkeypatch.setattr(registry, "update_state", counted)
    for _ in range(2 * ROUNDS):
        await reports.write(await reports._with_figures())
    assert written == {}
    (handle,) = manager.handles()
    assert (handle.stats.samples[-1].read, handle.stats.samples[-1].written) == (1, 1)


async def test_a_source_that_does_not_say_what_waits_holds_up_no_other(
    hg: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "BACKLOG_S", 0.05)
    rest = {"source": {"type": "generator", "rate": 0.001}, "sink": BLACKHOLE}
    await hg.apply(hung=rest, good=rest)
    assert hg.node.manager is not None
    for name in ("hung", "good"):
        await hg.until(name, status="RUNNING")
    handles = {handle.name: handle for handle in hg.node.manager.handles()}
    hung, good = handles["hung:0"], handles["good:0"]
    asked = [(one, one.run) for one in (hung, good) if one.run is not None]
    assert len(asked) == 2

    async def never() -> Backlog:
        await asyncio.Event().wait()
        raise AssertionError

    async def seven() -> Backlog:
        return Backlog(7)

    hung.stats.sees(Backlog(3))
    for (_, run), answer in zip(asked, (never, seven), strict=True):
        monkeypatch.setattr(run._source, "backlog", answer)
    await reporter._see_backlogs(asked)
    assert (hung.stats.backlog, good.stats.backlog) == (None, Backlog(7))
