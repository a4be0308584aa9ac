"""The push client and its connections: what it does when one is lost, and when a node sends it elsewhere."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from scripted_node import ScriptedNode, client_of, connected, open_stream, scripted_node
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from headgate.client import PushError, session
from headgate.client.addresses import Addresses, to_address
from headgate.client.connection import Connection
from headgate.core import backoff, frames
from headgate.core.frames import (
    AckFrame,
    ClosedFrame,
    EosFrame,
    ErrorFrame,
    HelloFrame,
    NotifyFrame,
    RestartFrame,
)

# Lost connections.


async def test_after_a_cut_the_rest_is_sent_again_in_order(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        one, two = await open_stream(client, peer, "one"), await open_stream(client, peer, "two")
        await one.send_many((id, b"x") for id in range(5))
        assert await peer.take("one", 5) == [0, 1, 2, 3, 4]
        await two.send(9, b"x")
        assert await peer.take("two", 1) == [9]
        await peer.ack("one", 1)
        peer.cut()
        await one.send(5, b"x")  # While nobody listens.
        peer = await connected(node)
        await peer.grant("one", 2)  # More was durable than we were told.
        await peer.grant("two", 9)
        assert await peer.take("one", 3) == [3, 4, 5]
        await two.flush()
        assert (one.position, two.position) == (2, 9)
        await peer.ack("one", 5)
        await one.flush()


async def test_a_cut_before_anything_is_durable_sends_everything_again(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send_many((id, b"x") for id in range(2500))
        for _ in range(3):
            await peer.take("s", 1000)
            peer.cut()
            peer = await connected(node)
            await peer.grant("s")
        assert await peer.take("s", 2500) == list(range(2500))
        await peer.ack("s", 2499)


async def test_a_node_that_goes_between_ask_and_answer_is_asked_again(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        asking = asyncio.create_task(client.stream("s"))
        peer = await connected(node)
        assert await peer.expect(NotifyFrame) == NotifyFrame("s")
        peer.cut()
        peer = await connected(node)
        await peer.grant("s", 7)
        assert (await asking).position == 7


async def test_records_too_large_for_the_next_nodes_frames_are_divided_anew(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send_many((id, b"x" * 100) for id in range(20))
        await peer.take("s", 20)
        peer.cut()
        peer = await connected(node, max_frame=500)
        await peer.grant("s")
        assert await peer.take("s", 20) == list(range(20))
        await peer.ack("s", 19)


async def test_a_record_too_large_for_the_next_node_fails_the_client(node: ScriptedNode) -> None:
    with pytest.raises(PushError, match="too_large"):
        async with client_of(node) as client:
            peer = await connected(node)
            stream = await open_stream(client, peer)
            await stream.send(0, b"x" * 1000)
            await peer.take("s", 1)
            peer.cut()
            peer = await connected(node, max_frame=500)
            await peer.grant("s")


async def test_an_end_survives_a_cut(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send_many([(0, b"x"), (1, b"x")])
        finishing = asyncio.create_task(stream.finish())
        assert await peer.take("s", 2) == [0, 1]
        assert await peer.expect(EosFrame) == EosFrame("s")
        peer.cut()
        peer = await connected(node)
        await peer.grant("s", 0)
        assert await peer.take("s", 1) == [1]
        assert await peer.expect(EosFrame) == EosFrame("s")
        peer.cut()  # The end is durable, and the word of it is lost.
        peer = await connected(node)
        await peer.grant("s", 1)
        await peer.end("s", 1)
        assert await finishing == 1


async def test_an_end_that_is_said_while_nobody_listens_is_said_later(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        peer.cut()
        await peer.closed()
        finishing = asyncio.create_task(stream.finish())
        peer = await connected(node)
        await peer.grant("s")
        await peer.end("s", None)
        assert await finishing is None


async def test_a_stream_that_is_closed_before_it_is_durable_is_asked_for_again(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send_many([(0, b"x"), (1, b"x")])
        finishing = asyncio.create_task(stream.finish())
        assert await peer.take("s", 2) == [0, 1]
        await peer.end("s", 0)
        await peer.grant("s", 0)
        assert await peer.take("s", 1) == [1]
        await peer.end("s", 1)
        assert await finishing == 1


async def test_beats_that_are_not_echoed_mean_that_the_connection_is_lost(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await node.accept()
        peer.is_deaf = True
        await peer.welcome(heartbeat_s=0.01)
        stream = await open_stream(client, peer)
        await stream.send(0, b"x")
        await peer.take("s", 1)
        with pytest.raises(ConnectionClosed):
            await peer.hear()
        assert peer.beats == frames.MISSED_BEATS
        peer = await connected(node)
        await peer.grant("s")
        assert await peer.take("s", 1) == [0]
        await peer.ack("s", 0)


async def test_beats_that_are_echoed_keep_the_connection(node: ScriptedNode) -> None:
    async with client_of(node):
        peer = await connected(node, heartbeat_s=0.01)
        for _ in range(4 * frames.MISSED_BEATS):
            await peer.hear_beat()
        assert node.is_alone


async def test_a_node_that_never_answers_hello_is_left_for_another(node: ScriptedNode) -> None:
    async with scripted_node() as other, client_of(node, other, open_timeout_s=0.1) as client:
        mute = await node.accept()
        peer = await connected(other)
        await mute.closed()
        await open_stream(client, peer)


async def test_a_port_where_nobody_listens_is_left_for_another(node: ScriptedNode) -> None:
    async with scripted_node() as gone:
        pass
    async with client_of(gone, node) as client:
        await open_stream(client, await connected(node))


async def test_the_nodes_that_a_node_names_are_tried_too(node: ScriptedNode) -> None:
    async with scripted_node() as other, client_of(node) as client:
        peer = await connected(node, nodes=[node.url, "nonsense", other.url + "/"])
        stream = await open_stream(client, peer)
        await stream.send(0, b"x")
        await peer.take("s", 1)
        peer.cut()
        peer = await connected(other)
        await peer.grant("s", 0)
        await stream.flush()


@pytest.mark.parametrize(
    "nonsense", [b"", b"\xc1", frames.encode(EosFrame("s")), "text", frames.encode(frames.OkFrame(1, 1, 1, []))]
)
async def test_a_node_that_sends_nonsense_is_told_and_left(node: ScriptedNode, nonsense: bytes | str) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send(0, b"x")
        await peer.take("s", 1)
        await peer.say(nonsense)
        if b"ok" not in (nonsense.encode() if isinstance(nonsense, str) else nonsense):
            assert (await peer.expect(ErrorFrame)).code in {"bad_frame", "unknown_frame"}
        peer = await connected(node)
        await peer.grant("s", 0)
        await stream.flush()


async def test_nonsense_in_place_of_ok_is_no_welcome(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await node.accept()
        await peer.expect(HelloFrame)
        await peer.say(ClosedFrame("s", 1))
        await open_stream(client, await connected(node))


async def test_waits_grow_until_a_connection_is_of_use(node: ScriptedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    def wait_s(attempt: int, jitter: float) -> float:
        assert 0 <= jitter < 1
        attempts.append(attempt)
        return 0.001

    monkeypatch.setattr(backoff, "wait_s", wait_s)
    async with client_of(node) as client:
        for _ in range(3):
            (await node.accept()).cut()
        (await connected(node)).cut()  # Being welcome is not enough.
        peer = await connected(node)
        assert attempts == [1, 2, 3, 4]
        await open_stream(client, peer)
        peer.cut()
        await connected(node)
        assert attempts == [1, 2, 3, 4, 1]


async def test_the_nodes_last_word_counts_even_if_writing_has_failed_before_it_is_read() -> None:
    class Closing:
        """The node has said something and gone; we notice the going first."""

        async def send(self, data: bytes) -> None:
            raise ConnectionClosedOK(None, None)

        async def recv(self) -> bytes:
            for _ in range(5):
                await asyncio.sleep(0)
            return frames.encode(ErrorFrame("forbidden", "no more"))

    spoken = session.Session("ws://node/push", frames.OkFrame(1, 1000, 5.0, []), {})
    spoken.beat()
    with pytest.raises(PushError, match="forbidden"):
        await Connection(cast(ClientConnection, Closing())).run(spoken, 5.0)


async def test_an_error_that_is_not_our_fault_is_no_end(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await node.accept()
        await peer.expect(HelloFrame)
        await peer.say(ErrorFrame("draining", "this node is going away"))
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send(0, b"x")
        await peer.take("s", 1)
        await peer.say(ErrorFrame("internal", "out of luck"))
        peer = await connected(node)
        await peer.grant("s")
        assert await peer.take("s", 1) == [0]
        await peer.ack("s", 0)


# Restarts.


async def test_a_restart_moves_everything_to_the_address_it_names(node: ScriptedNode) -> None:
    async with scripted_node() as other, client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send_many([(0, b"x"), (1, b"x")])
        await peer.take("s", 2)
        await peer.say(RestartFrame(None, other.url, "draining"))
        await peer.closed()
        assert peer.socket.close_code == 1000
        peer = await connected(other)
        await peer.grant("s", 0)
        assert await peer.take("s", 1) == [1]
        await peer.ack("s", 1)
        await stream.flush()
        assert node.is_alone


@pytest.mark.parametrize("address", [None, "nonsense", "ftp://127.0.0.1"])
async def test_a_restart_without_a_usable_address_goes_anywhere(node: ScriptedNode, address: str | None) -> None:
    async with scripted_node() as other, client_of(node, other) as client:
        peer = await connected(node)
        await open_stream(client, peer)
        await peer.say(RestartFrame(None, address, "draining"))
        await (await connected(other)).grant("s")


async def test_being_sent_once_takes_no_time_and_being_sent_around_does(
    node: ScriptedNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backoff, "wait_s", lambda attempt, jitter: 0.1)
    async with scripted_node() as other, client_of(node) as client:
        for here, there in ((node, other), (other, node), (node, other)):
            await (await connected(here)).say(RestartFrame(None, there.url))
        await open_stream(client, await connected(other))
    assert [record.message.split(" in ")[-1] for record in caplog.records] == ["0.0 s", "0.1 s", "0.1 s"]


async def test_the_restart_of_a_stream_asks_for_it_again_on_the_same_connection(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        one, two = await open_stream(client, peer, "one"), await open_stream(client, peer, "two")
        await one.send_many([(0, b"x"), (1, b"x"), (2, b"x")])
        assert await peer.take("one", 3) == [0, 1, 2]
        await peer.say(RestartFrame("one", node.url, "moved"), RestartFrame("gone", None, "nobody knows it"))
        await peer.grant("one", 1)
        assert await peer.take("one", 1) == [2]
        await two.send(0, b"x")
        assert await peer.take("two", 1) == [0]
        await peer.say(AckFrame(0, [("one", 2), ("two", 0)]))
        await one.flush()
        assert node.is_alone


async def test_the_restart_of_a_stream_elsewhere_moves_everything(node: ScriptedNode) -> None:
    async with scripted_node() as other, client_of(node) as client:
        peer = await connected(node)
        one = await open_stream(client, peer, "one")
        await open_stream(client, peer, "two")
        await one.send(0, b"x")
        await peer.take("one", 1)
        await peer.say(RestartFrame("one", other.url, "moved"))
        peer = await connected(other)
        await peer.grant("one")
        await peer.grant("two")
        assert await peer.take("one", 1) == [0]
        await peer.ack("one", 0)


async def test_an_end_survives_the_restart_of_its_stream(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        finishing = asyncio.create_task(stream.finish())
        assert await peer.expect(EosFrame) == EosFrame("s")
        await peer.say(RestartFrame("s"))
        await peer.grant("s")
        await peer.end("s", None)
        assert await finishing is None


async def test_records_that_crossed_a_restart_are_not_held_against_us(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send(0, b"x")
        await peer.take("s", 1)
        await peer.say(RestartFrame("s"), ErrorFrame("not_granted", "records for a stream that is not granted"))
        peer = await connected(node)
        await peer.grant("s")
        assert await peer.take("s", 1) == [0]
        await peer.ack("s", 0)


# Addresses.


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://Node.example.org:8470", "ws://node.example.org:8470/push"),
        ("http://node.example.org/", "ws://node.example.org:80/push"),
        ("https://node.example.org", "wss://node.example.org:443/push"),
        ("ws://10.0.0.1:8470/push", "ws://10.0.0.1:8470/push"),
        ("wss://node.example.org/headgate/push/", "wss://node.example.org:443/headgate/push"),
        ("http://[::1]:8470", "ws://[::1]:8470/push"),
    ],
)
def test_an_address_has_one_spelling(url: str, address: str) -> None:
    assert to_address(url) == address == to_address(address)


def test_addresses_are_tried_in_turn_and_those_that_nodes_name_come_last() -> None:
    addresses = Addresses(["http://a", "http://b", "http://a/"])
    assert [addresses.next() for _ in range(3)] == ["ws://a:80/push", "ws://b:80/push", "ws://a:80/push"]
    addresses.learn(["http://b", "http://c", "nonsense"])
    assert [addresses.next() for _ in range(3)] == ["ws://b:80/push", "ws://c:80/push", "ws://a:80/push"]
    addresses.prefer(to_address("http://d"))
    assert [addresses.next() for _ in range(2)] == ["ws://d:80/push", "ws://a:80/push"]
    addresses.learn([])
    assert [addresses.next() for _ in range(2)] == ["ws://b:80/push", "ws://a:80/push"]


def test_a_token_for_encrypted_addresses_is_not_carried_to_others() -> None:
    addresses = Addresses(["https://a"])
    addresses.learn(["http://b", "https://c"])
    addresses.prefer(to_address("http://d"))
    assert [addresses.next() for _ in range(3)] == ["wss://a:443/push", "wss://c:443/push", "wss://a:443/push"]
