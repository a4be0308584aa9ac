"""What is kept from look to look: the same as if all were read and judged again, whatever has happened meanwhile."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from headgate.clock import unix_s
from headgate.core.access import ANYONE
from headgate.core.figures import Backlog, InboxBacklog, Reported, Sample
from headgate.core.records import Totals
from headgate.datasources.health import is_settled, judged
from headgate.datasources.listing import Listing
from headgate.errors import HeadgateError
from headgate.runtime import facts as kept
from headgate.runtime.facts import all_figures
from headgate.store.database import Horizon
from headgate.store.states import Changes, States
from headgate.web.api import views
from headgate.web.bodies.datasources import Summary
from headgate.web.lines import Lines
from tests.datasources.test_health import NOW_S, facts, published, stream
from tests.runtime.conftest import Harness, generator

ROUNDS = 40
HOOK = {"source": {"type": "webhook"}, "sink": {"type": "blackhole"}}
NOWHERE = {"type": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none", "table": "t"}
DOCUMENTS: tuple[dict[str, Any], ...] = (
    {"source": generator(count=5), "sink": {"type": "blackhole"}},
    {"source": generator(rate=1), "sink": {"type": "blackhole"}},
    {"source": generator(rate=1), "sink": {"type": "blackhole"}, "expect": {"fresh_within": "1s"}},
    {"source": generator(rate=1), "sink": NOWHERE},
    {"source": generator(count=20), "sink": {"type": "blackhole"}, "streams": 2},
    {**HOOK, "enabled": False},
    HOOK,
)


# What stays as it is.

times = st.none() | st.floats(NOW_S - 200.0, NOW_S)
reports = st.builds(
    Reported,
    waiting_since_s=times,
    waiting_above=st.integers(0, 9),
    reading_since_s=times,
    writing_since_s=times,
    backlog=st.none() | st.builds(Backlog, st.none() | st.integers(0, 3)),
    backlog_since_s=times,
    samples=st.lists(st.builds(Sample, st.floats(NOW_S - 100.0, NOW_S), st.just(5), st.integers(4, 5)), max_size=2).map(
        lambda found: tuple(sorted(found, key=lambda one: one.at_s))
    ),
)
states = st.builds(
    lambda reported, status, totals: replace(stream(status), reported=reported, totals=totals),
    reports,
    st.sampled_from(("RUNNING", "STARTING", "STOPPED", "ERROR")),
    st.builds(Totals, st.just(5), st.integers(4, 5), st.integers(0, 1)),
)
inboxes = st.none() | st.builds(InboxBacklog, st.integers(0, 3), st.just(0), times)


@given(
    st.lists(states, max_size=3), inboxes, st.sampled_from(({}, {"expect": {"fresh_within": "5m"}})), st.floats(0, 1e5)
)
def test_what_is_settled_is_the_same_at_any_later_time(
    found: list[Any], inbox: InboxBacklog | None, options: dict[str, Any], later_s: float
) -> None:
    now = facts(*found, inbox=inbox, published=published("webhook", **options))
    if is_settled(now):
        later = replace(now, now_s=NOW_S + later_s)
        assert (judged(later), all_figures(later)) == (judged(now), all_figures(now))


def test_a_stream_at_rest_is_settled_and_one_that_waits_is_not() -> None:
    rests = (Sample(NOW_S - 60.0, 5, 5), Sample(NOW_S - 55.0, 5, 5))
    assert is_settled(facts(stream(reported=Reported(samples=rests, reading_since_s=NOW_S - 50.0))))
    assert not is_settled(facts(stream(reported=Reported(samples=rests, waiting_since_s=NOW_S - 1.0))))
    assert not is_settled(facts(stream(reported=Reported(samples=(Sample(NOW_S - 1.0, 5, 5),)))))
    assert not is_settled(facts(stream(), inbox=InboxBacklog(1, 9, NOW_S)))


# What is read again.


async def act(dice: random.Random, nodes: list[Harness]) -> None:
    """Something that people, programs or nodes do. What is refused now is not done."""
    hg, name = dice.choice(nodes), f"ds-{dice.randint(0, 9)}"
    registry = hg.node.registry
    acts: dict[str, Callable[[], Awaitable[Any]]] = {
        "apply": lambda: hg.apply(**{name: dice.choice(DOCUMENTS)}),
        "stop": lambda: registry.set_enabled(name, False, "tester"),
        "start": lambda: registry.start(name, "tester"),
        "pause": lambda: registry.pause(name, "tester"),
        "restart": lambda: registry.restart(name, "tester"),
        "delete": lambda: registry.delete(name, "tester", yes=True),
        "draft": lambda: draft(hg, name),
        "publish": lambda: registry.publish(name, "tester", is_admin=True),
        "payload": lambda: payload(hg, name),
        "drain": lambda: hg.drain(dice.random() < 0.5),
    }
    with contextlib.suppress(HeadgateError):
        await acts[dice.choice([*acts, "apply", "apply", "apply"])]()


async def draft(hg: Harness, name: str) -> None:
    """What is published, once more."""
    found = await hg.node.registry.get(name)
    version = await hg.node.registry.datasources.version(found.id, found.published_version)
    assert version is not None
    await hg.node.registry.put_draft(name, version.content, "tester")


async def payload(hg: Harness, name: str) -> None:
    """As if a webhook had been called."""
    found = await hg.node.registry.get(name)
    await hg.sql(
        "INSERT INTO headgate.inbox_size (datasource, rows, bytes) VALUES ($1, 1, 2) ON CONFLICT DO NOTHING", found.id
    )


async def compared(hg: Harness, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept with what is there, at a moment at which nothing happens."""
    for _ in range(200):
        now_s = unix_s()
        monkeypatch.setattr(kept, "unix_s", lambda now_s=now_s: now_s)
        before = await views.summaries(hg.node, ANYONE)
        found = (await lines.overview()).datasources
        if before == await views.summaries(hg.node, ANYONE):
            assert [shown(one) for one in found] == [shown(one) for one in before]
            return
    raise AssertionError("something happened all the time")


def shown(one: Summary) -> Summary:
    """Without what lists do not show: an hour passes without anything being written."""
    return structs.replace(one, metrics=replace(one.metrics, last_hour=0))


async def test_whatever_happens_what_is_kept_is_what_is_there(
    join: Callable[..., Awaitable[Harness]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # Chooses the same acts.
    dice = random.Random(seed)
    alpha = await join("alpha")
    nodes, lines = [alpha], Lines(alpha.node)
    for round in range(ROUNDS):
        if round == ROUNDS // 4:
            nodes.append(await join("beta"))
        if round == ROUNDS // 4 * 3:
            await nodes.pop().stop()
        for _ in range(dice.randint(0, 3)):
            await act(dice, nodes)
        await compared(alpha, lines, monkeypatch)


async def test_only_what_has_changed_is_read_again(
    join: Callable[..., Awaitable[Harness]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hg = await join("alpha")
    await hg.apply(**{f"ds_{number}": {**HOOK, "enabled": False} for number in range(20)})
    lines, read = Lines(hg.node), []
    since = States.since

    async def noted(self: States, mark: Horizon | None) -> Changes:
        read.append(await since(self, mark))
        return read[-1]

    monkeypatch.setattr(States, "since", noted)
    first = {one.name: one for one in (await lines.overview()).datasources}
    assert read[-1].changed is None

    async def is_quiet() -> bool:
        await lines.overview()
        return read[-1].changed == set()

    await hg.until_true(is_quiet)
    before = {one.name: one for one in (await lines.overview()).datasources}
    await draft(hg, "ds-7")
    after = {one.name: one for one in (await lines.overview()).datasources}
    assert first.keys() == after.keys()
    assert [name for name in after if after[name] is not before[name]] == ["ds-7"]
    assert after["ds-7"].has_draft


async def test_numbers_of_another_history_say_nothing(join: Callable[..., Awaitable[Harness]]) -> None:
    """A standby that was promoted counts its transactions from where it was, which may be behind what was seen."""
    hg = await join("alpha")
    await hg.apply(**{f"ds_{number}": {**HOOK, "enabled": False} for number in range(3)})
    states, datasources = hg.node.registry.states, hg.node.registry.datasources
    mark = (await states.since(None)).mark
    assert (await states.since(mark)).changed is not None
    lost = replace(mark, lineage="of the old primary", xid=mark.xid + 1000)
    assert (await states.since(lost)).changed is None, "all is read again"
    listing = Listing(datasources)
    assert len(await listing.all()) == 3
    known = listing._known
    assert known is not None
    listing._known = replace(known, mark=lost, by_id={}, items=[])
    assert len(await listing.all()) == 3
