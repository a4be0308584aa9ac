"""The consumer of a group and its turns, against a node that is played by the test."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted_node import (
    TOKEN,
    Clock,
    GroupPeer,
    ScriptedNode,
    admitted,
    beat,
    closed,
    consumer_of,
    entered,
    in_turn,
    never,
    soon,
)

from headgate.client import ConsumerError, Turn
from headgate.client import consumer as consumer_module
from headgate.client.errors import GROUP_FATAL
from headgate.core import frames
from headgate.core.frames import ActiveFrame, ConfirmFrame, JoinFrame, StepDownFrame
from headgate.core.groups import belief

DOCS = Path(__file__).parents[2] / "docs"


# Turns.


async def test_a_consumer_joins_and_has_its_turn_and_steps_down(node: ScriptedNode, clock: Clock) -> None:
    consumer = consumer_of(node, clock=clock, partition=3, lease_s=20.0)
    entering = asyncio.create_task(consumer.__aenter__())
    peer: GroupPeer = await node.accept()
    assert peer.path == "/groups"
    assert await peer.admit("c1") == JoinFrame(1, TOKEN, "invoices", "billing", 3, "me", None, 20.0)
    await peer.hear_beat()
    await soon(entering)
    await peer.activate(5, 3)
    turn = await soon(consumer.turn())
    assert (turn.epoch, turn.partition, turn.holds, turn.stepping) == (5, 3, True, False)
    assert await soon(consumer.turn()) is turn
    await peer.step_down(5)
    await soon(turn.asked())
    assert turn.holds
    assert turn.stepping
    await turn.done()
    await peer.expect_stepped_down(5)
    assert not turn.holds
    assert not turn.stepping
    await turn.done()  # Twice is once.
    await peer.activate(7, 3)
    assert (await soon(consumer.turn())).epoch == 7
    await closed(consumer, peer)


async def test_a_consumer_says_that_it_is_fenced_and_otherwise_nothing_of_it(node: ScriptedNode, clock: Clock) -> None:
    """A node of an earlier release knows no such field."""
    for fenced in (True, False):
        consumer = consumer_of(node, clock=clock, fenced=fenced)
        entering = asyncio.create_task(consumer.__aenter__())
        peer: GroupPeer = await node.accept()
        join = await peer.admit("c1")
        assert join == JoinFrame(1, TOKEN, "invoices", "billing", None, "me", None, None, True if fenced else None)
        assert len(msgspec.msgpack.decode(frames.encode(join))) == (10 if fenced else 9)
        await peer.hear_beat()
        await soon(entering)
        await closed(consumer, peer)


async def test_a_turn_that_was_told_before_the_first_echo_begins_with_it(node: ScriptedNode, clock: Clock) -> None:
    consumer = consumer_of(node, clock=clock)
    entering = asyncio.create_task(consumer.__aenter__())
    peer: GroupPeer = await node.accept()
    await peer.admit()
    beat = await peer.take_beat()
    await peer.activate(5)
    await soon(entering)
    waiting = asyncio.create_task(consumer.turn())
    await peer.activate(5)  # Answered: so it has dealt with the one before, too.
    assert not waiting.done()
    await peer.say(beat)
    assert (await soon(waiting)).epoch == 5
    await closed(consumer, peer)


async def test_the_same_order_is_answered_twice(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    await peer.activate(5)
    await peer.step_down(5)
    await peer.step_down(5)
    await soon(turn.asked())
    await turn.done()
    await peer.expect_stepped_down(5)
    await peer.step_down(5)
    await peer.expect_stepped_down(5)
    await closed(consumer, peer)


async def test_stale_orders_are_ignored(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    await peer.say(
        StepDownFrame("c1", 0, 5), StepDownFrame("c2", 1, 5), StepDownFrame("c1", 1, 4), ActiveFrame("c1", 9, 6)
    )
    await peer.activate(5)  # The only one that is answered.
    assert turn.holds
    assert not turn.stepping
    await closed(consumer, peer)


async def test_a_step_down_from_what_is_not_held_is_confirmed_at_once(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer = await entered(node, clock)
    await peer.step_down(4)
    await peer.expect_stepped_down(4)
    await closed(consumer, peer)


async def test_a_turn_that_is_given_back_is_left_and_joined_anew(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    await turn.done()
    assert not turn.holds
    await peer.expect_leave()
    await peer.closed()
    peer = await node.accept()
    assert (await peer.admit("c2")).consumer is None
    await peer.hear_beat()
    await peer.activate(8)
    assert (await soon(consumer.turn())).epoch == 8
    await closed(consumer, peer)


async def test_beats_keep_a_turn(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    for _ in range(10):
        clock.now_s += 8.0  # Nearly a lease.
        beat(consumer)
        await peer.hear_beat()
        await peer.activate(5)
        assert turn.holds
    await closed(consumer, peer)


async def test_a_consumer_beats_by_itself(node: ScriptedNode, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "BEAT_S", 0.01)
    consumer, peer = await entered(node, clock)
    assert [(await peer.take_beat()).n for _ in range(3)] == [2, 3, 4]
    await closed(consumer, peer)


# Work.


async def test_run_does_its_work_in_each_turn(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer = await entered(node, clock)
    epochs: asyncio.Queue[int] = asyncio.Queue()

    async def work(turn: Turn) -> None:
        epochs.put_nowait(turn.epoch)
        await turn.asked()
        assert turn.holds
        assert turn.stepping

    running = asyncio.create_task(consumer.run(work))
    for epoch in (5, 7):
        await peer.activate(epoch)
        assert await soon(epochs.get()) == epoch
        await peer.step_down(epoch)
        await peer.expect_stepped_down(epoch)
    await closed(consumer, peer)
    with pytest.raises(ConsumerError, match="closed"):
        await soon(running)


async def test_work_is_cancelled_and_awaited_when_the_belief_ends(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer = await entered(node, clock)
    said: asyncio.Queue[str] = asyncio.Queue()
    may_end = asyncio.Event()

    async def work(turn: Turn) -> None:
        said.put_nowait("begun")
        try:
            await never(turn)
        finally:
            said.put_nowait("cancelled" if not turn.holds else "too early")
            await may_end.wait()

    running = asyncio.create_task(consumer.run(work))
    await peer.activate(5)
    assert await soon(said.get()) == "begun"
    clock.now_s += 9.0
    assert await soon(said.get()) == "cancelled"
    peer = await node.accept()
    await peer.admit("c1", 2)
    await peer.expect_leave()
    peer = await admitted(node, "c2")
    await peer.activate(6)
    await peer.activate(6)
    assert said.empty()  # The work before has not ended yet.
    may_end.set()
    assert await soon(said.get()) == "begun"
    await closed(consumer, peer)
    with pytest.raises(ConsumerError, match="closed"):
        await soon(running)


async def test_a_run_that_is_cancelled_gives_its_turn_back_when_the_work_has_ended(
    node: ScriptedNode, clock: Clock
) -> None:
    consumer, peer = await entered(node, clock)
    begun, stopping, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(turn: Turn) -> None:
        begun.set()
        try:
            await never(turn)
        finally:
            stopping.set()
            await may_end.wait()

    running = asyncio.create_task(consumer.run(work))
    await peer.activate(5)
    await soon(begun.wait())
    running.cancel()
    await soon(stopping.wait())
    await peer.activate(5)  # Nothing was said before this.
    may_end.set()
    await peer.expect_leave()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)
    await closed(consumer)


async def test_work_that_fails_gives_its_turn_back_and_ends_the_run(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer = await entered(node, clock)

    async def work(turn: Turn) -> None:
        raise ZeroDivisionError

    running = asyncio.create_task(consumer.run(work))
    await peer.activate(5)
    await peer.expect_leave()
    with pytest.raises(ZeroDivisionError):
        await soon(running)
    await closed(consumer)


async def test_work_that_returns_unasked_gives_its_turn_back_and_waits_for_the_next(
    node: ScriptedNode, clock: Clock
) -> None:
    consumer, peer = await entered(node, clock)
    epochs: list[int] = []

    async def work(turn: Turn) -> None:
        epochs.append(turn.epoch)

    running = asyncio.create_task(consumer.run(work))
    await peer.activate(5)
    await peer.expect_leave("c1")
    peer = await admitted(node, "c2")
    await peer.activate(6)
    await peer.expect_leave("c2")
    assert epochs == [5, 6]
    running.cancel()
    await closed(consumer)


async def test_one_work_at_a_time(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer = await entered(node, clock)
    begun = asyncio.Event()

    async def work(turn: Turn) -> None:
        begun.set()
        await never(turn)

    running = asyncio.create_task(consumer.run(work))
    await peer.activate(5)
    await soon(begun.wait())
    with pytest.raises(RuntimeError):
        await soon(consumer.run(work))
    running.cancel()
    await peer.expect_leave()
    await closed(consumer)


# Closing.


async def test_leaving_the_block_ends_the_turn_and_leaves_the_group(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    waiting = asyncio.create_task(consumer.turn())
    await soon(waiting)
    leaving = asyncio.create_task(consumer.__aexit__(None, None, None))
    await peer.expect_leave()
    await peer.closed()
    await soon(leaving)
    assert not turn.holds
    await soon(turn.asked())
    with pytest.raises(ConsumerError, match="closed"):
        await consumer.turn()
    await soon(consumer.close())  # Twice is once.
    assert node.is_alone


async def test_the_group_is_left_only_when_the_work_has_ended(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer = await entered(node, clock)
    begun, stopping, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(turn: Turn) -> None:
        begun.set()
        try:
            await never(turn)
        finally:
            stopping.set()
            await may_end.wait()

    running = asyncio.create_task(consumer.run(work))
    await peer.activate(5)
    await soon(begun.wait())
    closing = asyncio.create_task(consumer.close())
    await soon(stopping.wait())
    await peer.activate(5)  # It is still there, and has said nothing else.
    may_end.set()
    await peer.expect_leave()
    await soon(closing)
    with pytest.raises(ConsumerError, match="closed"):
        await soon(running)


async def test_work_that_does_not_end_keeps_the_group_from_being_left(
    node: ScriptedNode, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "WORK_ENDS_S", 0.01)
    consumer, peer = await entered(node, clock)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def work(turn: Turn) -> None:
        begun.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    running = asyncio.create_task(consumer.run(work))
    await peer.activate(5)
    await soon(begun.wait())
    await closed(consumer)
    await peer.closed()
    assert [frame async for frame in peer.socket] == []
    may_end.set()
    with pytest.raises(ConsumerError, match="closed"):
        await soon(running)


async def test_closing_while_a_node_does_not_answer_the_join(node: ScriptedNode) -> None:
    consumer = consumer_of(node)
    entering = asyncio.create_task(consumer.__aenter__())
    peer: GroupPeer = await node.accept()
    await peer.expect(JoinFrame)
    await closed(consumer)
    with pytest.raises(ConsumerError, match="closed"):
        await soon(entering)
    await peer.closed()


async def test_an_entry_that_is_cancelled_leaves_nothing_behind(node: ScriptedNode) -> None:
    consumer = consumer_of(node)
    entering = asyncio.create_task(consumer.__aenter__())
    peer: GroupPeer = await node.accept()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(entering)
    await peer.closed()
    with pytest.raises(ConsumerError, match="closed"):
        await consumer.turn()


async def test_closing_while_a_connection_is_away(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    peer.cut()
    peer = await node.accept()
    await peer.expect(JoinFrame)
    await closed(consumer)
    assert not turn.holds
    await peer.closed()


async def test_a_peer_that_does_not_say_goodbye_does_not_hold_up_a_close(
    node: ScriptedNode, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.client.connection.CLOSE_S", 0.01)
    consumer, peer, _ = await in_turn(node, clock)
    peer.socket.transport.pause_reading()
    await closed(consumer)


# Use.


async def test_a_consumer_is_used_within_its_block_and_once(node: ScriptedNode, clock: Clock) -> None:
    with pytest.raises(RuntimeError):
        await consumer_of(node).turn()
    consumer, peer = await entered(node, clock)
    with pytest.raises(RuntimeError):
        await consumer.__aenter__()
    await closed(consumer, peer)


async def test_confirmations_name_what_they_confirm(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    assert repr(turn) == "Turn(epoch=5, partition=None, holds=True)"
    await peer.say(ActiveFrame("c1", 1, 6))
    assert await peer.expect(ConfirmFrame) == ConfirmFrame("c1", 6, "active")
    await soon(turn.over())
    assert (await soon(consumer.turn())).epoch == 6
    await closed(consumer, peer)


@pytest.mark.parametrize(
    "options",
    [
        {"stream": ""},
        {"group": "g" * 201},
        {"partition": -1},
        {"partition": 2**31},
        {"lease_s": 1.9},
        {"lease_s": 3601.0},
        {"lease_s": float("nan")},
    ],
    ids=repr,
)
def test_what_no_node_would_take_is_a_mistake(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        consumer_of("http://host", **options)


def test_every_code_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "groups-protocol.md").read_text()
    for code in {*GROUP_FATAL, "not_ready", "silent", "internal"}:
        assert f"| `{code}` |" in page, code


def test_the_reference_has_the_numbers() -> None:
    page = (DOCS / "reference" / "groups-protocol.md").read_text()
    assert f"every {belief.BEAT_S:g} s" in page
    assert f"{frames.SHORTEST_LEASE_S:g} to {frames.LONGEST_LEASE_S:g}" in page
    assert f"{frames.MAX_GROUP_FRAME_BYTES:,} bytes" in page
