"""The consumer of a group when it hears nothing, loses its connection, or is told of an error."""

from __future__ import annotations

import asyncio
import contextlib
import logging

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
    scripted_node,
    soon,
)
from websockets.exceptions import ConnectionClosed

from headgate.client import ConsumerError, ConsumerRefused
from headgate.client import consumer as consumer_module
from headgate.client.conversation import Believer
from headgate.client.errors import GROUP_FATAL, Lost
from headgate.core.frames import ActiveFrame, ErrorFrame, JoinedFrame, JoinFrame, StepDownFrame
from headgate.core.groups import belief
from headgate.core.groups.belief import Heard

# What an error means.


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("partition_index_conflict", ConsumerRefused),
        ("fenced_conflict", ConsumerRefused),
        ("forbidden", ConsumerRefused),
        ("version", ConsumerError),
        ("not_ready", Lost),
        ("anything", Lost),
    ],
)
def test_an_error_says_whose_fault_it_is(code: str, kind: type[Exception]) -> None:
    believer = Believer()
    believer.step(Heard(JoinedFrame("c1", 1, 10.0, []), 0.0))
    with pytest.raises(Exception, match="text") as raised:
        believer.step(Heard(ErrorFrame(code, "text"), 0.0))
    assert type(raised.value) is kind


# A belief that ends.


async def test_a_turn_without_echoes_is_over_for_good(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    clock.now_s += 8.9
    assert turn.holds
    clock.now_s += 0.1
    assert not turn.holds
    await soon(turn.over())
    await peer.closed()
    peer = await node.accept()
    assert (await peer.admit("c1", 2)).consumer == "c1"
    await peer.expect_leave()
    await peer.closed()
    peer = await node.accept()
    assert (await peer.admit("c2")).consumer is None
    await peer.hear_beat()
    await peer.activate(6)
    assert (await soon(consumer.turn())).epoch == 6
    assert not turn.holds
    await closed(consumer, peer)


async def test_a_paused_consumer_finds_its_buffer_full_of_echoes_and_does_not_believe_them(
    node: ScriptedNode, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "TICK_S", 60.0)  # Nothing but what it reads tells it the time.
    consumer, peer, turn = await in_turn(node, clock)
    for _ in range(5):
        clock.now_s += 1.0
        beat(consumer)
    beats = [await peer.take_beat() for _ in range(5)]
    clock.now_s += 4.0  # The last of them would be good for 5 s more.
    with contextlib.suppress(ConnectionClosed):
        await peer.say(*beats, ActiveFrame("c1", 1, 5), StepDownFrame("c1", 1, 5))
    await soon(turn.over())
    assert not turn.holds
    peer = await node.accept()
    assert (await peer.expect(JoinFrame)).consumer == "c1"
    await closed(consumer)


async def test_an_echo_that_comes_late_counts_from_when_its_beat_was_sent(node: ScriptedNode, clock: Clock) -> None:
    consumer = consumer_of(node, clock=clock)
    entering = asyncio.create_task(consumer.__aenter__())
    peer: GroupPeer = await node.accept()
    await peer.admit()
    beat = await peer.take_beat()
    await soon(entering)
    clock.now_s += 5.0
    await peer.say(beat)
    await peer.activate(5)
    turn = await soon(consumer.turn())
    clock.now_s += 3.9
    assert turn.holds
    clock.now_s += 0.1
    assert not turn.holds
    await closed(consumer)


async def test_a_turn_ends_while_no_node_is_in_reach(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    peer.cut()
    peer = await node.accept()  # It does not answer.
    assert turn.holds
    clock.now_s += 9.0
    await soon(turn.over())
    await peer.admit("c1", 2)  # At last.
    await peer.expect_leave()
    await closed(consumer)


# Connections.


async def test_a_turn_outlives_its_connection(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    peer.cut()
    peer = await node.accept()
    assert (await peer.admit("c1", 2)).consumer == "c1"
    await peer.hear_beat()
    await peer.activate(5)
    assert turn.holds
    assert await soon(consumer.turn()) is turn
    await closed(consumer, peer)


async def test_another_node_takes_it_back(node: ScriptedNode, clock: Clock) -> None:
    async with scripted_node() as other:
        consumer = consumer_of(node, clock=clock)
        entering = asyncio.create_task(consumer.__aenter__())
        peer: GroupPeer = await node.accept()
        await peer.admit("c1", 1, 10.0, other.url)
        await peer.hear_beat()
        await soon(entering)
        await peer.activate(5)
        turn = await soon(consumer.turn())
        peer.cut()
        peer = await other.accept()
        assert peer.path == "/groups"
        assert (await peer.admit("c1", 2)).consumer == "c1"
        await peer.hear_beat()
        await peer.activate(5)
        assert turn.holds
        await closed(consumer, peer)


async def test_a_node_that_knows_it_as_another_ends_the_turn(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    peer.cut()
    peer = await node.accept()
    await peer.admit("c2")
    await soon(turn.over())
    await peer.hear_beat()
    await peer.activate(6)
    assert (await soon(consumer.turn())).epoch == 6
    await closed(consumer, peer)


async def test_an_old_incarnation_is_left_for_another_connection(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    peer.cut()
    peer = await node.accept()
    await peer.admit("c1", 1)
    await peer.closed()
    peer = await admitted(node, "c1", 2)
    await peer.activate(5)
    assert turn.holds
    await closed(consumer, peer)


async def test_a_step_down_after_a_return_is_obeyed(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    peer.cut()
    peer = await node.accept()
    await peer.admit("c1", 2)
    await peer.say(StepDownFrame("c1", 1, 5))  # On its way to the connection before.
    await peer.step_down(5)
    await soon(turn.asked())
    assert turn.holds
    await turn.done()
    await peer.expect_stepped_down(5)
    await closed(consumer, peer)


async def test_a_turn_that_is_done_while_no_node_is_in_reach_is_confirmed_after_the_return(
    node: ScriptedNode, clock: Clock
) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    await peer.step_down(5)
    await soon(turn.asked())
    peer.cut()
    peer = await node.accept()  # Whose answer it waits for.
    await turn.done()
    assert not turn.holds
    await peer.admit("c1", 2)
    await peer.expect_stepped_down(5)
    await closed(consumer, peer)


async def test_one_that_waits_keeps_its_place(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer = await entered(node, clock)
    peer.cut()
    clock.now_s += 100.0
    peer = await node.accept()
    assert (await peer.admit("c1", 2)).consumer == "c1"
    await peer.hear_beat()
    await peer.activate(5)
    assert (await soon(consumer.turn())).epoch == 5
    await closed(consumer, peer)


async def test_a_node_that_echoes_nothing_is_left(
    node: ScriptedNode, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(belief, "BEAT_S", 0.01)
    consumer = consumer_of(node, clock=clock)
    entering = asyncio.create_task(consumer.__aenter__())
    peer: GroupPeer = await node.accept()
    await peer.admit()
    await soon(entering)
    clock.now_s += 9.0
    await peer.closed()
    peer = await admitted(node, "c1", 2)
    await closed(consumer, peer)


# Errors.


@pytest.mark.parametrize("code", sorted(GROUP_FATAL))
async def test_an_error_that_is_ours_is_raised_where_the_program_enters(node: ScriptedNode, code: str) -> None:
    entering = asyncio.create_task(consumer_of(node).__aenter__())
    peer: GroupPeer = await node.accept()
    await peer.expect(JoinFrame)
    await peer.say(ErrorFrame(code, f"no {TOKEN}"))
    with pytest.raises(ConsumerError) as caught:
        await soon(entering)
    assert caught.value.code == code
    assert TOKEN not in str(caught.value)
    is_refused = code in {"unauthorized", "forbidden", "partition_index_conflict", "fenced_conflict"}
    assert isinstance(caught.value, ConsumerRefused) == is_refused


async def test_an_error_that_is_ours_ends_the_turn_and_every_call(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer, turn = await in_turn(node, clock)
    await peer.say(ErrorFrame("forbidden", "the token was taken away"), ErrorFrame("version", "and more"))
    await soon(turn.over())
    assert not turn.holds
    for call in (consumer.turn(), consumer.run(never)):
        with pytest.raises(ConsumerRefused, match="forbidden"):
            await soon(call)
    await closed(consumer)
    with pytest.raises(ConsumerRefused, match="forbidden"):  # The first reason stays.
        await consumer.turn()


async def test_errors_that_are_not_ours_are_waited_out(node: ScriptedNode, clock: Clock) -> None:
    entering = asyncio.create_task(consumer_of(node, clock=clock).__aenter__())
    for code in ("not_ready", "something_new"):
        peer: GroupPeer = await node.accept()
        await peer.expect(JoinFrame)
        await peer.say(ErrorFrame(code, "not now"))
    peer = await admitted(node)
    consumer = await soon(entering)
    await peer.activate(5)
    turn = await soon(consumer.turn())
    await peer.say(ErrorFrame("not_ready", "the database is away"))
    peer = await admitted(node, "c1", 2)
    await peer.activate(5)
    assert turn.holds
    await closed(consumer, peer)


async def test_what_is_no_frame_is_answered_and_left(node: ScriptedNode, clock: Clock) -> None:
    consumer, peer = await entered(node, clock)
    await peer.say(b"\xc1")
    assert (await peer.expect(ErrorFrame)).code == "bad_frame"
    peer = await admitted(node, "c1", 2)
    await peer.say("text")
    assert (await peer.expect(ErrorFrame)).code == "bad_frame"
    peer = await admitted(node, "c1", 3)
    await closed(consumer, peer)


async def test_the_token_is_in_no_log_line(node: ScriptedNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    entering = asyncio.create_task(consumer_of(node).__aenter__())
    peer: GroupPeer = await node.accept()
    await peer.expect(JoinFrame)
    await peer.say(ErrorFrame("not_ready", f"I do not like {TOKEN}"))
    peer = await admitted(node)
    consumer = await soon(entering)
    assert TOKEN not in repr(consumer)
    await closed(consumer, peer)
    ours = [record for record in caplog.records if record.name == "headgate.client"]
    assert ours
    assert not [record for record in ours if TOKEN in record.getMessage()]
