"""Letters of pushed streams, replayed though their programs are away; and programs that come back meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors.api import Progress
from headgate.datasources.letters import Replay
from headgate.errors import NotConnected
from headgate.runtime.push import listener as push
from headgate.runtime.streams import strays
from headgate.runtime.streams.replays import Replays
from headgate.store.letters import Filter, Numbers
from tests.web.pushing import House, house

BROKEN = {"set": {"id": "meta.id", "n": "int(n)"}}
MENDED = {"set": {"id": "meta.id", "n": "0"}}


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "BARRIER_S", 0.01)
    monkeypatch.setattr(strays, "PAUSE_S", 0.1)


@pytest.fixture
async def here(url: str, tmp_path: Path) -> AsyncIterator[House]:
    async with house(url, tmp_path / "home") as found:
        yield found


async def numbers(here: House, name: str) -> Numbers:
    return await here.node.letters.numbers((await here.node.registry.get(name)).id)


async def pushed(here: House, *streams: str) -> str:
    """A datasource with a letter of each stream, whose programs have gone."""
    name = await here.publish(mapping=BROKEN)
    async with here.connected(name) as program:
        for stream in streams:
            await program.have(stream)
            await program.push(stream, [1, 3], b'{"n": 5}')
            await program.push(stream, [5], b'{"n": "x"}')
            await program.acked(stream, 5)
    await here.until(lambda: numbers(here, name), lambda found: found.open == len(streams))
    await here.until_empty()
    await here.publish(name, mapping=MENDED)
    return name


async def ask(here: House, name: str) -> Any:
    return await here.node.letter_box.replay(await here.node.registry.get(name), Replay(Filter()), "tester")


async def test_letters_are_replayed_while_their_program_is_away_and_the_stream_is_free_again(here: House) -> None:
    name = await pushed(here, "a", "b")
    done = await ask(here, name)
    assert (done.letters, done.waits) == (2, None)
    await here.until(lambda: numbers(here, name), lambda found: found == Numbers(replayed=2))
    await here.until_empty()
    assert await here.ids(name) == [1, 1, 3, 3, 5, 5]
    async with here.connected(name) as program:
        assert await program.have("a") == 5  # A replay leaves the position as it is.
        await program.push("a", [7], b"{}")
        await program.acked("a", 7)


async def test_a_program_that_comes_back_gets_its_stream_at_once_and_replays_go_on(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caretaker would go on for long: the program does not wait for that."""
    monkeypatch.setattr(strays, "BRIEF_S", 3600.0)
    name = await pushed(here, "a")
    monkeypatch.setattr(strays._NoRecords, "read", _for_ever)
    await ask(here, name)
    await here.until(lambda: numbers(here, name), lambda found: found.replayed == 1)
    assert (await here.row(name, "a"))["owner"] is not None
    async with here.connected(name) as program:
        assert await program.have("a") == 5
        await program.push("a", [7], b"{}")
        await program.acked("a", 7)


async def _for_ever(feed: object) -> None:
    await asyncio.Event().wait()


async def test_a_caretaker_gives_the_stream_back_soon_whatever_its_run_does(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strays, "BRIEF_S", 2.0)
    monkeypatch.setattr(strays._NoRecords, "read", _for_ever)
    name = await pushed(here, "a")
    await ask(here, name)
    await here.until(lambda: numbers(here, name), lambda found: found.replayed == 1)
    await here.until_empty()


async def test_a_run_that_fails_gives_the_stream_back_and_is_tried_again(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program must not find the stream taken while a node waits for a sink that is away."""
    name, real, owners = await pushed(here, "a"), Replays.some, []

    async def fails_twice(replays: Replays, before: Progress) -> Progress | None:
        owners.append((await here.row(name, "a"))["epoch"])
        if len(owners) <= 2:
            raise NotConnected("the sink is away")
        return await real(replays, before)

    monkeypatch.setattr(Replays, "some", fails_twice)
    await ask(here, name)
    await here.until(lambda: numbers(here, name), lambda found: found == Numbers(replayed=1))
    await here.until_empty()
    assert await here.ids(name) == [1, 3, 5]
    released = "SELECT count(*) FROM headgate.stream_history WHERE kind = 'released' AND epoch = ANY ($1::bigint[])"
    assert (await here.sql(released, owners[:2]))[0]["count"] == 2


async def test_two_nodes_replay_a_letter_once(url: str, tmp_path: Path) -> None:
    async with house(url, tmp_path / "a") as one, house(url, tmp_path / "b"):
        name = await pushed(one, *"abcdefgh")
        await ask(one, name)
        await one.until(lambda: numbers(one, name), lambda found: found == Numbers(replayed=8))
        assert await one.ids(name) == [1] * 8 + [3] * 8 + [5] * 8
