"""The push client against a node that each test plays: what it says, what it keeps, and what it does about failures."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from scripted_node import TOKEN, ScriptedNode, client_of, connected, open_stream, round_trip

from headgate.client import PushClient, PushError, PushRefused, session
from headgate.client.errors import FATAL
from headgate.core import frames
from headgate.core.frames import (
    AckFrame,
    ClosedFrame,
    EosFrame,
    ErrorFrame,
    HelloFrame,
    Message,
    MessagesFrame,
    NotifyAckFrame,
    NotifyFrame,
    RestartFrame,
)

DOCS = Path(__file__).parents[2] / "docs"


# What is said.


async def test_hello_says_who_we_are(node: ScriptedNode) -> None:
    async with client_of(node, program="agent", instance="host-7"):
        peer = await node.accept()
        assert await peer.welcome() == HelloFrame(1, TOKEN, "clicks", "agent", "host-7")
        assert peer.path == "/push"
    await peer.closed()


async def test_records_go_out_as_they_were_given_and_come_back_durable(node: ScriptedNode) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer, "host-7")
        assert stream.position is None
        await stream.send(0, b"\x00raw")
        await stream.send(1, {"n": 1, "at": noon.astimezone(UTC)}, key="u1", event_time=noon)
        await stream.send_many([(2, "text", b"u2"), (5, None, None, -1), (7, bytearray(b"x"), memoryview(b"k"), 3)])
        flushing = asyncio.create_task(stream.flush())
        assert await peer.expect(MessagesFrame) == MessagesFrame(
            "host-7",
            [
                Message(0, None, None, b"\x00raw"),
                Message(1, 1767265200000000, b"u1", b'{"n":1,"at":"2026-01-01T11:00:00Z"}'),
                Message(2, None, b"u2", b'"text"'),
                Message(5, -1, None, None),
                Message(7, 3, b"k", b"x"),
            ],
        )
        await peer.ack("host-7", 5, credits=4)
        await round_trip(client, peer)
        assert stream.position == 5
        assert not flushing.done()
        await peer.ack("host-7", 7, credits=1)
        await flushing
        assert stream.position == 7
        position, _ = await asyncio.gather(stream.finish(), peer.end("host-7", 7))
        assert position == 7


async def test_what_the_node_has_is_skipped_so_that_input_can_be_replayed(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer, position=41)
        assert stream.position == 41
        await stream.send_many((id, id) for id in range(40, 45))
        assert await peer.take("s", 3) == [42, 43, 44]
        with pytest.raises(ValueError):
            await stream.send(44, b"")
        await peer.ack("s", 44)


async def test_replaying_only_what_is_durable_sends_nothing(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer, position=2)
        await stream.send_many([(0, b""), (1, b""), (2, b"")])
        await stream.flush()
        position, _ = await asyncio.gather(stream.finish(), peer.end("s", 2))
        assert position == 2


async def test_waiting_records_are_gathered_into_frames_of_a_thousand(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send_many((id, b"x") for id in range(2500))
        sizes: list[int] = []
        ids: list[int] = []
        while len(ids) < 2500:
            frame = await peer.expect(MessagesFrame)
            sizes.append(len(frame.messages))
            ids += [message.id for message in frame.messages]
        assert sizes == [1000, 1000, 500]
        assert ids == list(range(2500))
        await peer.ack("s", 2499)


async def test_frames_keep_to_the_nodes_limit(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node, max_frame=1000)
        stream = await open_stream(client, peer)
        await stream.send_many((id, b"x" * 300) for id in range(10))
        ids: list[int] = []
        while len(ids) < 10:
            frame = await peer.expect(MessagesFrame)
            assert len(frames.encode(frame)) <= 1000
            assert len(frame.messages) > 1 or ids
            ids += [message.id for message in frame.messages]
        assert ids == list(range(10))
        await peer.ack("s", 9)


async def test_a_record_that_fits_exactly_is_sent_and_one_byte_more_is_a_mistake(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node, max_frame=1000)
        stream = await open_stream(client, peer)
        fits = 1000 - len(frames.encode(MessagesFrame("s", [Message(0, None, None, b"x" * 300)]))) + 300
        with pytest.raises(ValueError, match="1,001 bytes"):
            await stream.send(0, b"x" * (fits + 1))
        await stream.send(0, b"x" * fits)
        assert await peer.take("s", 1) == [0]
        await peer.ack("s", 0)


@pytest.mark.parametrize("id", [3, 2, -1, 2**63, "4", 4.0, True, None])
async def test_an_id_that_does_not_rise_is_a_mistake_and_changes_nothing(node: ScriptedNode, id: Any) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send(3, b"x")
        with pytest.raises((ValueError, TypeError)):
            await stream.send(id, b"x")
        await stream.send(2**63 - 1, b"x")
        assert await peer.take("s", 2) == [3, 2**63 - 1]
        await peer.ack("s", 2**63 - 1)


@pytest.mark.parametrize(
    "record",
    [
        (1, object()),
        (1, b"x", 7),
        (1, b"x", None, 1.5),
        (1, b"x", None, 2**63),
        (1, b"x", None, datetime(2026, 1, 1)),
        (1, b"x", "\ud800"),
    ],
    ids=["payload", "key", "float", "too late", "naive", "surrogate"],
)
async def test_a_record_that_cannot_be_sent_is_a_mistake_and_changes_nothing(
    node: ScriptedNode, record: tuple[Any, ...]
) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        with pytest.raises((ValueError, TypeError)):
            await stream.send(*record)
        await stream.send(1, b"right")
        assert await peer.take("s", 1) == [1]
        await peer.ack("s", 1)


# Credits and room.


async def test_credits_are_never_overdrawn(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node, credits=10)
        one, two = await open_stream(client, peer, "one"), await open_stream(client, peer, "two")
        await one.send_many((id, b"x") for id in range(15))
        assert await peer.take("one", 10) == list(range(10))
        await two.send(0, b"x")
        await round_trip(client, peer)  # Which would have met more records.
        await peer.ack("one", 3, credits=4)
        assert await peer.take("one", 4) == [10, 11, 12, 13]
        await round_trip(client, peer)
        await peer.say(AckFrame(100, [("one", 13)]))
        left = {
            frame.stream: [m.id for m in frame.messages]
            for frame in [await peer.expect(MessagesFrame) for _ in range(2)]
        }
        assert left == {"one": [14], "two": [0]}
        await peer.say(AckFrame(0, [("one", 14), ("two", 0)]))


async def test_credits_begin_anew_with_each_connection(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node, credits=2)
        stream = await open_stream(client, peer)
        await stream.send_many((id, b"x") for id in range(6))
        assert await peer.take("s", 2) == [0, 1]
        peer.cut()
        peer = await connected(node, credits=3)
        await peer.grant("s", 0)
        assert await peer.take("s", 3) == [1, 2, 3]
        await round_trip(client, peer)
        await peer.ack("s", 3, credits=3)
        assert await peer.take("s", 2) == [4, 5]
        await peer.ack("s", 5)


async def test_streams_take_turns(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node, credits=0)
        one, two = await open_stream(client, peer, "one"), await open_stream(client, peer, "two")
        await one.send_many((id, b"x") for id in range(3000))
        await two.send_many((id, b"x") for id in range(3000))
        await peer.say(AckFrame(6000, []))
        assert [(await peer.expect(MessagesFrame)).stream for _ in range(6)] == ["one", "two"] * 3
        await peer.say(AckFrame(0, [("one", 2999), ("two", 2999)]))


async def test_a_full_buffer_holds_senders_up_until_something_is_durable(node: ScriptedNode) -> None:
    async with client_of(node, buffer=5) as client:
        peer = await connected(node)
        one, two = await open_stream(client, peer, "one"), await open_stream(client, peer, "two")
        many = asyncio.create_task(one.send_many((id, b"x") for id in range(7)))
        assert await peer.take("one", 5) == [0, 1, 2, 3, 4]
        other = asyncio.create_task(two.send(0, b"x"))
        await round_trip(client, peer)
        assert not many.done()
        assert not other.done()
        await peer.ack("one", 4)
        await asyncio.gather(many, other)
        heard = [await peer.expect(MessagesFrame) for _ in range(2)]
        assert sorted((frame.stream, len(frame.messages)) for frame in heard) == [("one", 2), ("two", 1)]
        await peer.say(AckFrame(0, [("one", 6), ("two", 0)]))


async def test_a_send_that_is_cancelled_has_not_taken_its_record(node: ScriptedNode) -> None:
    async with client_of(node, buffer=1) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send(0, b"x")
        sending = asyncio.create_task(stream.send(1, b"cancelled"))
        assert await peer.take("s", 1) == [0]
        await round_trip(client, peer)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await peer.ack("s", 0)
        await stream.send(1, b"again")
        assert (await peer.expect(MessagesFrame)).messages == [Message(1, None, None, b"again")]
        await peer.ack("s", 1)


# Asking for streams.


@pytest.mark.parametrize("reason", ["busy", "owned", "draining", "not_ready", "some new reason"])
@pytest.mark.parametrize("retry_after_ms", [0, 5, None])
async def test_a_stream_that_cannot_be_had_now_is_asked_for_again(
    node: ScriptedNode, reason: str, retry_after_ms: int | None
) -> None:
    async with client_of(node) as client:
        asking = asyncio.create_task(client.stream("s"))
        peer = await connected(node)
        for _ in range(2):
            assert await peer.expect(NotifyFrame) == NotifyFrame("s")
            await peer.say(NotifyAckFrame("s", accepted=False, reason=reason, retry_after_ms=retry_after_ms))
        await peer.grant("s", 3)
        assert (await asking).position == 3


async def test_a_stream_that_is_refused_harms_no_other(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        for name in ("", "x" * 201):
            with pytest.raises(PushRefused, match="bad_stream"):
                await client.stream(name)
        asking = asyncio.create_task(client.stream("a b"))
        assert await peer.expect(NotifyFrame) == NotifyFrame("a b")
        await peer.say(NotifyAckFrame("a b", accepted=False, reason="bad_stream"))
        with pytest.raises(PushRefused, match="bad_stream"):
            await asking
        await stream.send(0, b"x")
        assert await peer.take("s", 1) == [0]
        await peer.ack("s", 0)


async def test_a_stream_that_is_refused_later_fails_alone_and_makes_room(node: ScriptedNode) -> None:
    with pytest.raises(PushRefused):
        async with client_of(node, buffer=2) as client:
            peer = await connected(node)
            one, two = await open_stream(client, peer, "one"), await open_stream(client, peer, "two")
            await one.send_many([(0, b"x"), (1, b"x")])
            await peer.take("one", 2)
            peer.cut()
            peer = await connected(node)
            assert await peer.expect(NotifyFrame) == NotifyFrame("one")
            await peer.say(NotifyAckFrame("one", accepted=False, reason="bad_stream"))
            await peer.grant("two")
            with pytest.raises(PushRefused):
                await one.flush()
            with pytest.raises(PushRefused):
                await one.send(2, b"x")
            await two.send_many([(0, b"x"), (1, b"x")])
            assert await peer.take("two", 2) == [0, 1]
            await peer.say(AckFrame(0, [("one", 1), ("two", 1)]))
            await two.flush()
        # What was refused has not become durable: leaving says so.


async def test_a_stream_that_is_refused_does_not_wait_for_room_that_others_take(node: ScriptedNode) -> None:
    async with client_of(node, buffer=1) as client:
        peer = await connected(node)
        one, two = await open_stream(client, peer, "one"), await open_stream(client, peer, "two")
        await one.send(0, b"x")
        sending = asyncio.create_task(two.send(0, b"x"))
        await peer.take("one", 1)
        peer.cut()
        peer = await connected(node)
        await peer.grant("one")
        assert await peer.expect(NotifyFrame) == NotifyFrame("two")
        await peer.say(NotifyAckFrame("two", accepted=False, reason="bad_stream"))
        with pytest.raises(PushRefused):
            await sending
        await peer.take("one", 1)
        await peer.ack("one", 0)


async def test_an_open_stream_is_given_again_and_a_finished_one_anew(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        one, two, _ = await asyncio.gather(client.stream("s"), client.stream("s"), peer.grant("s"))
        await one.send(0, b"x")
        assert await peer.take("s", 1) == [0]
        with pytest.raises(ValueError):
            await two.send(0, b"x")
        finishing, asking = asyncio.create_task(one.finish()), asyncio.create_task(client.stream("s"))
        await peer.end("s", 0)
        await peer.grant("s", 0)
        assert await finishing == 0
        again = await asking
        with pytest.raises(RuntimeError, match="finished"):
            await one.send(1, b"x")
        assert await one.finish() == 0
        await again.send(1, b"x")
        assert await peer.take("s", 1) == [1]
        await peer.ack("s", 1)


async def test_a_stream_that_nobody_waits_for_any_more_is_given_back(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        asking = asyncio.create_task(client.stream("s"))
        assert await peer.expect(NotifyFrame) == NotifyFrame("s")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await peer.say(NotifyAckFrame("s", accepted=True, position=None, epoch=1))
        await peer.end("s", None)
        await open_stream(client, peer)


async def test_a_grant_for_a_call_that_was_cancelled_serves_the_next_call(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        asking = asyncio.create_task(client.stream("s"))
        assert await peer.expect(NotifyFrame) == NotifyFrame("s")
        asking.cancel()
        asking = asyncio.create_task(client.stream("s"))
        assert await peer.expect(NotifyFrame) == NotifyFrame("s")
        await peer.say(
            NotifyAckFrame("s", accepted=False, reason="busy", retry_after_ms=60_000),
            NotifyAckFrame("s", accepted=True, position=4, epoch=1),
            NotifyAckFrame("s", accepted=False, reason="busy", retry_after_ms=1),
            NotifyAckFrame("s", accepted=True, position=9, epoch=2),
        )
        stream = await asking
        await round_trip(client, peer)
        assert stream.position == 4


# The end.


@pytest.mark.parametrize("code", sorted(FATAL))
async def test_a_fatal_error_at_hello_fails_every_call(node: ScriptedNode, code: str) -> None:
    async with client_of(node) as client:
        asking = asyncio.create_task(client.stream("s"))
        peer = await node.accept()
        await peer.expect(HelloFrame)
        await peer.say(ErrorFrame(code, f"not with {TOKEN}"))
        for call in (asking, client.stream("s"), client.stream("t")):
            with pytest.raises(PushError) as caught:
                await call
            assert caught.value.code == code
            assert TOKEN not in repr(caught.value) + str(caught.value)
    assert node.is_alone


@pytest.mark.parametrize("code", sorted(FATAL))
async def test_a_fatal_error_fails_everybody_who_waits(node: ScriptedNode, code: str) -> None:
    with pytest.raises(PushError, match=code):  # Not everything is durable: leaving says so.
        async with client_of(node, buffer=1) as client:
            peer = await connected(node)
            one, two = await open_stream(client, peer, "one"), await open_stream(client, peer, "two")
            await one.send(0, b"x")
            waiting = [
                asyncio.create_task(call)
                for call in (
                    one.flush(),
                    one.send(1, b"x"),
                    two.send_many([(0, b"x")]),
                    two.finish(),
                    client.stream("t"),
                )
            ]
            await peer.take("one", 1)
            await peer.expect(EosFrame)
            await peer.expect(NotifyFrame)
            await peer.say(ErrorFrame(code, "that was wrong"))
            peer.cut()
            for end in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(end, PushError)
                assert end.code == code
            for call in (one.flush(), one.send(1, b"x"), one.finish(), two.flush(), client.stream("one")):
                with pytest.raises(PushError, match=code):
                    await call


async def test_a_fatal_error_after_everything_is_durable_does_not_spoil_the_end(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await stream.send(0, b"x")
        await peer.take("s", 1)
        await peer.say(AckFrame(1, [("s", 0)]), ErrorFrame("forbidden", "no more"))
        with pytest.raises(PushError):
            await client.stream("t")


async def test_leaving_waits_until_everything_is_durable(node: ScriptedNode) -> None:
    async def push() -> None:
        async with client_of(node) as client:
            await (await client.stream("s")).send(0, b"x")

    pushing = asyncio.create_task(push())
    peer = await connected(node)
    await peer.grant("s")
    await peer.take("s", 1)
    peer.cut()
    peer = await connected(node)
    await peer.grant("s")
    await peer.take("s", 1)
    assert not pushing.done()
    await peer.ack("s", 0)
    await pushing
    await peer.closed()
    assert peer.socket.close_code == 1000


async def test_leaving_by_an_exception_waits_for_nothing_and_fails_who_waits(node: ScriptedNode) -> None:
    flushing = None
    with pytest.raises(ZeroDivisionError):
        async with client_of(node) as client:
            peer = await connected(node)
            stream = await open_stream(client, peer)
            await stream.send(0, b"x")
            flushing = asyncio.create_task(stream.flush())
            await peer.take("s", 1)
            raise ZeroDivisionError
    await peer.closed()
    assert flushing is not None
    for call in (flushing, stream.send(1, b"x"), stream.finish(), client.stream("s"), client.stream("t")):
        with pytest.raises(PushError, match="closed"):
            await call


async def test_leaving_while_no_node_is_in_reach_ends_at_once_if_nothing_is_held() -> None:
    async with client_of("http://127.0.0.1:1") as client:
        asking = asyncio.create_task(client.stream("s"))
    with pytest.raises(PushError, match="closed"):
        await asking


async def test_a_bug_of_ours_fails_the_client_instead_of_hanging(
    node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(node) as client:
        peer = await connected(node)
        await open_stream(client, peer)
        monkeypatch.setattr(session.Session, "_closed", lambda self, frame: 1 // 0)
        await peer.say(ClosedFrame("s", 0))
        with pytest.raises(PushError, match="ZeroDivisionError") as caught:
            await client.stream("t")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_client_is_used_within_its_block_and_entered_once(node: ScriptedNode) -> None:
    client = client_of(node)
    with pytest.raises(RuntimeError):
        await client.stream("s")
    async with client:
        with pytest.raises(RuntimeError):
            await client.__aenter__()


async def test_the_token_is_in_no_log_line_and_in_no_repr(node: ScriptedNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("websockets", "websockets.client", "headgate.client"):
        caplog.set_level(logging.DEBUG, name)
    async with client_of(node) as client:
        peer = await node.accept()
        await peer.expect(HelloFrame)
        await peer.say(ErrorFrame("internal", f"I do not like {TOKEN}"))
        peer = await connected(node)
        stream = await open_stream(client, peer)
        await peer.say(RestartFrame(None, None, f"I do not like {TOKEN}"))
        peer = await connected(node)
        await peer.grant("s")
        assert TOKEN not in repr(client) + repr(stream) + str(client)
    ours = [record for record in caplog.records if record.name.startswith("headgate.client")]
    assert len(ours) == 4
    assert not [record for record in ours if TOKEN in record.getMessage()]
    assert not [record for record in caplog.records if record.name.startswith("websockets.client")]


# Whatever the node is called.


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8470", "ftp://host", "http://", "http://host:port", "http://host/?token=x", "http://u:p@host"],
)
def test_a_url_that_is_no_nodes_is_a_mistake(url: str) -> None:
    with pytest.raises(ValueError):
        PushClient(url, datasource="clicks")


def test_a_client_needs_a_url_and_a_buffer() -> None:
    with pytest.raises(ValueError):
        PushClient([], datasource="clicks")
    with pytest.raises(ValueError):
        PushClient("http://host", datasource="clicks", buffer=0)


def test_every_code_and_reason_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "push.md").read_text()
    for code in {*FATAL, "busy", "owned", "draining", "not_ready", "bad_stream"}:
        assert f"| `{code}` |" in page, code
