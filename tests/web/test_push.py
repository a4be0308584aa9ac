"""The push door of a real node, spoken to by hand: what each frame gets, and that nobody's mistake is another's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headgate.connectors import plugins as connectors
from headgate.core import frames
from headgate.datasources.documents import read_one
from headgate.errors import Cause, ConnectorError, NotConnected, StoreError
from headgate.runtime.push import listener as push
from headgate.runtime.streams import manager
from headgate.web.doors import push as door
from headgate.web.doors import wire
from tests.web.pushing import WINDOW, Gate, House, Program, house, numbers
from tests.web_node import Databases

pytestmark = pytest.mark.asyncio(loop_scope="module")

pack = msgspec.msgpack.encode


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> str:
    return databases.make()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """The node of this module; every test has datasources of its own. Its barriers are in a hurry."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(push, "BARRIER_S", 0.01)
        async with house(database_url, tmp_path_factory.mktemp("push") / "home") as found:
            yield found


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A sink that does as its test says."""
    gate, real = Gate(), connectors.get
    monkeypatch.setattr(connectors, "get", lambda name: gate.connector if name == "gate" else real(name))
    return gate


GATED = {"type": "gate"}


# Hello.


async def test_hello_is_answered_with_credits_limits_and_where_the_nodes_are(here: House) -> None:
    name = await here.publish()
    async with here.connected() as program:
        assert await program.hello(name) == [WINDOW, 4 * 1024 * 1024, 5.0, [here.url]]
    async with here.connected() as program:
        await program.say("hello", 1, here.token, name)  # What is missing at the end is nil.
        await program.expect("ok")


async def test_a_wrong_hello_gets_an_error_that_says_why_and_nothing_of_the_token(here: House) -> None:
    name, draft = await here.publish(), f"draft-{next(numbers)}"
    document = read_one(draft, {"source": {"type": "push"}, "sink": {"type": "blackhole"}})
    await here.node.registry.create(document, "tester")
    other = await here.publish(source={"type": "generator", "rate": 1}, sink={"type": "blackhole"}, mapping=None)
    _, viewer = await here.node.tokens.create("a viewer", "viewer")
    for token, datasource, code in [
        ("hg_wrong-but-recognisable", name, "unauthorized"),
        ("", name, "unauthorized"),
        (here.token[:-1], name, "unauthorized"),
        (viewer, name, "forbidden"),
        (here.token, "nobody", "not_found"),
        (here.token, "", "not_found"),
        (here.token, other, "not_found"),
        (here.token, draft, "not_found"),
    ]:
        async with here.connected(token=token) as program:
            await program.say("hello", 1, token, datasource, None, None)
            assert await program.fails(code)


async def test_another_version_of_the_protocol_is_refused_before_anything_else(here: House) -> None:
    for version in (0, 2, 2**63 - 1):
        async with here.connected(token="hg_wrong") as program:
            await program.say("hello", version, "hg_wrong", "nobody", None, None)
            assert "speaks version 1" in await program.fails("version")


@pytest.mark.parametrize("frame", [["notify", "s", None], ["beat", 1], ["messages", "s", []], ["eos", "s"]])
async def test_the_first_frame_must_be_hello(here: House, frame: list[Any]) -> None:
    async with here.connected() as program:
        await program.say(*frame)
        await program.fails("unexpected")


async def test_a_second_hello_ends_the_session(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.say("hello", 1, here.token, name, None, None)
        assert await program.fails("unexpected") == "a second hello"


async def test_a_text_message_is_no_frame(here: House) -> None:
    name = await here.publish()
    for datasource in ("", name):
        async with here.connected(datasource) as program:
            await program.socket.send("hello")
            await program.fails("bad_frame")


async def test_whoever_says_hello_too_late_is_closed(here: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HELLO_S", 0.05)
    async with here.connected() as program:
        await program.fails("silent")


async def test_programs_that_push_stay_connected_keep_their_records_and_go_on(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", range(3))
        await program.acked("s", 2)
        await here.node.registry.pause(name, "ada")
        assert await program.expect("restart", "ack", "beat") == ["s", None, "paused"]
        answer = await program.ask("s")
        assert (answer["accepted"], answer["reason"]) == (False, "not_ready")
        assert answer["retry_after_ms"] > 0
        async with here.connected(name) as another:  # A new one is let in, and waits as well.
            assert (await another.ask("t"))["reason"] == "not_ready"
        await here.node.registry.start(name, "ada")
        assert await program.have("s") == 2
        await program.push("s", range(3, 6))
        await program.acked("s", 5)


async def test_a_datasource_is_known_at_once_and_unknown_once_it_is_deleted(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await here.node.registry.delete(name, "tester")
        assert await program.expect("restart") == ["s", None, "stopped"]
        await program.say("notify", "s", None)
        await program.fails("not_found")
    async with here.connected() as program:
        await program.say("hello", 1, here.token, name, None, None)
        await program.fails("not_found")


async def test_without_trust_or_database_hello_gets_not_ready(here: House, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await here.publish()
    async with here.connected(name):  # Known from now on.
        pass

    async def away(*args: object) -> Any:
        raise StoreError("the database is away")

    for owner, attribute, stand_in in [
        (here.node, "trust_left_s", lambda: 0.0),
        (here.node.incarnations, "addresses", away),
        (here.node.registry, "get_datasource_config", away),
    ]:
        with monkeypatch.context() as patched:
            patched.setattr(owner, attribute, stand_in)
            async with here.connected() as program:
                await program.say("hello", 1, here.token, name, None, None)
                await program.fails("not_ready")
    async with here.connected(name):
        pass


async def test_there_is_no_other_websocket_than_push(here: House) -> None:
    for path in ("/", "/push/", "/api/push", "/hooks/x"):
        with pytest.raises(InvalidStatus):
            await connect(here.url.replace("http", "ws") + path)


async def test_a_browser_s_cookie_or_header_is_no_token_here(here: House) -> None:
    name = await here.publish()
    form = {"data": {"token": here.token}, "headers": {"Origin": here.url}}
    answer = await asyncio.to_thread(httpx.post, f"{here.url}/login", **form)
    cookie = answer.headers["set-cookie"].partition(";")[0]
    headers = {"Authorization": f"Bearer {here.token}", "Cookie": cookie}
    async with connect(here.url.replace("http", "ws") + "/push", additional_headers=headers) as socket:
        program = Program(socket, "")
        await program.say("hello", 1, "", name, None, None)
        await program.fails("unauthorized")


# Notify.


async def test_a_new_stream_is_granted_with_nothing_and_belongs_to_the_node_of_its_session(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        answer = await program.ask("host-7")
        row = await here.row(name, "host-7")
        assert answer == {
            "stream": "host-7",
            "accepted": True,
            "position": None,
            "epoch": row["epoch"],
            "reason": None,
            "retry_after_ms": None,
        }
        assert row["owner"] == here.node.incarnation
        assert row["index"] is None


async def test_an_inactive_stream_is_granted_with_its_position_under_a_higher_epoch(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        first = await program.ask("s")
        await program.push("s", [3, 7])
        assert await program.end("s") == 7
        again = await program.ask("s")
    assert (again["accepted"], again["position"]) == (True, 7)
    assert again["epoch"] > first["epoch"]
    await here.until_free(name, "s")
    async with here.connected(name) as program:
        assert await program.have("s") == 7


async def test_a_stream_that_another_session_has_is_owned_until_that_one_is_gone(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as second:
        async with here.connected(name) as first:
            await first.have("s")
            answer = await second.ask("s")
            assert (answer["accepted"], answer["reason"], answer["retry_after_ms"]) == (False, "owned", 2000)
            await first.push("s", [0])
            await first.acked("s", 0)
        assert await second.have("s") == 0


async def test_a_session_that_asks_twice_is_told_that_the_stream_is_busy(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    gate.may_open.clear()
    async with here.connected(name) as program:
        await program.say("notify", "s", None)
        await gate.opening.acquire()
        answer = await program.ask("s")
        assert (answer["accepted"], answer["reason"], answer["retry_after_ms"]) == (False, "busy", 500)
        gate.may_open.set()
        assert (await program.expect("notify_ack"))[1] is True
        assert (await program.ask("s"))["reason"] == "busy"


async def test_a_stream_that_is_being_opened_for_another_is_busy(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    gate.may_open.clear()
    async with here.connected(name) as first, here.connected(name) as second:
        await first.say("notify", "s", None)
        await gate.opening.acquire()
        assert (await second.ask("s"))["reason"] == "busy"
        gate.may_open.set()
        assert (await first.expect("notify_ack"))[1] is True
        assert (await second.ask("s"))["reason"] == "owned"


async def test_a_stream_that_is_being_given_back_is_busy_until_it_is_free(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    async with here.connected(name) as second:
        async with here.connected(name) as first:
            await first.have("s")
            gate.may_write.clear()
            await first.push("s", [1])
            await gate.writing.acquire()
        await here.until(_sessions(here), lambda found: found == 1)
        assert (await second.ask("s"))["reason"] == "busy"
        gate.may_write.set()
        assert await second.have("s") == 1
    assert [record["id"] for record in gate.records] == [1]


def _sessions(here: House) -> Any:
    async def count() -> int:
        return len(here.node.push.sessions)

    return count


async def test_only_names_that_fit_into_a_url_are_streams(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        for stream in (" ", "a b", "a/b", "a\n", "\0", "a?b", "a#b", '"', "a%20", "\u202e", "😀"):
            answer = await program.ask(stream)
            assert (answer["accepted"], answer["reason"]) == (False, "bad_stream"), stream
            assert await here.row(name, stream.replace("\0", "")) is None
        for stream in ("0", "host-7", "a.b~c:d@e=f+g", "Größe", "日本", "x" * 200):
            assert (await program.ask(stream))["accepted"], stream
    for stream in ("", "x" * 201):
        async with here.connected(name) as program:
            await program.say("notify", stream, None)
            await program.fails("bad_frame")


async def test_streams_of_a_stopped_datasource_are_not_ready_until_it_is_started(here: House) -> None:
    name = await here.publish(enabled=False)
    async with here.connected(name) as program:
        answer = await program.ask("s")
        assert (answer["accepted"], answer["reason"], answer["retry_after_ms"]) == (False, "not_ready", 1000)
        await here.node.registry.set_enabled(name, True, "tester")
        assert await program.have("s") is None


@pytest.mark.parametrize("failure", [NotConnected("away"), ConnectorError("wrong", cause=Cause.CONFIG)])
async def test_a_sink_that_cannot_be_opened_makes_a_stream_not_ready_until_it_can(
    here: House, gate: Gate, failure: ConnectorError
) -> None:
    name = await here.publish(sink=GATED)
    async with here.connected(name) as program:
        gate.open_failure = failure
        answer = await program.ask("s")
        assert (answer["accepted"], answer["reason"], answer["retry_after_ms"]) == (False, "not_ready", 1000)
        await here.until_free(name, "s")
        gate.open_failure = None
        await program.have("s")
        await program.push("s", [0])
        await program.acked("s", 0)
    await here.until_empty()


async def test_of_many_sessions_that_race_for_a_stream_exactly_one_wins(here: House) -> None:
    name = await here.publish()

    async def racer(start: asyncio.Barrier, over: asyncio.Barrier) -> str | None:
        async with here.connected(name) as program:
            await start.wait()
            answer = await program.ask("s")
            await over.wait()  # Nobody leaves before all are answered.
            return "won" if answer["accepted"] else answer["reason"]

    start, over = asyncio.Barrier(20), asyncio.Barrier(20)
    answers = await asyncio.gather(*(racer(start, over) for _ in range(20)))
    assert answers.count("won") == 1
    assert set(answers) <= {"won", "owned", "busy"}


async def test_a_stream_belongs_to_one_datasource(here: House) -> None:
    one, two = await here.publish(), await here.publish()
    async with here.connected(one) as first, here.connected(two) as second:
        assert await first.have("s") is None
        assert await second.have("s") is None
        await first.push("s", [1])
        await first.acked("s", 1)
    assert (await here.ids(one), await here.ids(two)) == ([1], [])


async def test_a_draining_node_grants_nothing_and_sends_programs_away(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program, here.connected(name) as other:
        await program.have("s")
        await here.node.nodes.set_draining(here.node.incarnation, True)
        found = [await program.expect("restart") for _ in range(2)]
        assert sorted(found, key=str) == [["s", None, "draining"], [None, None, "draining"]]
        assert await other.expect("restart") == [None, None, "draining"]
        answer = await other.ask("t")
        assert (answer["accepted"], answer["reason"], answer["retry_after_ms"]) == (False, "draining", 1000)
        async with here.connected(name) as late:
            assert await late.expect("restart") == [None, None, "draining"]
        await here.node.nodes.set_draining(here.node.incarnation, False)
        await other.have("s")


# Records.


async def test_what_is_acked_is_in_the_table(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        for first in range(0, 300, 100):
            await program.push("s", range(first, first + 100))
            while program.acks.get("s") != first + 99:
                _, [[_, position]] = await program.expect("ack")
                assert await here.ids(name) == list(range(position + 1))
        await program.got_back(300)


async def test_ids_begin_anywhere_rise_and_may_have_gaps(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0])
        await program.acked("s", 0)
        await program.push("s", [1, 5])
        await program.push("s", [1000, 2**63 - 1])
        await program.acked("s", 2**63 - 1)
        assert await program.end("s") == 2**63 - 1
    assert await here.ids(name) == [0, 1, 5, 1000, 2**63 - 1]


@pytest.mark.parametrize("ids", [[5], [4], [6, 6], [7, 6], [0]])
async def test_an_id_that_does_not_rise_ends_the_session(here: House, ids: list[int]) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [5])
        await program.push("s", ids)
        await program.fails("backwards")
    await here.until_free(name, "s")
    assert set(await here.ids(name)) <= {5}


async def test_records_that_are_durable_already_are_skipped_and_their_credits_come_back(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", range(10))
        await program.end("s")
    await here.until_free(name, "s")
    async with here.connected(name) as program:
        assert await program.have("s") == 9
        await program.push("s", range(5))
        await program.got_back(5)
        await program.push("s", range(5, 15))
        await program.acked("s", 14)
        await program.got_back(15)
        assert await program.end("s") == 14
    assert await here.ids(name) == list(range(15))


async def test_an_end_after_nothing_but_skipped_records_closes_at_the_old_position(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [4])
        await program.end("s")
        await program.have("s")
        await program.push("s", [2])
        assert await program.end("s") == 4
        await program.got_back(2)


async def test_records_of_a_stream_that_was_not_granted_end_the_session(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    for kind, rest in (("messages", [[[1, None, None, b"{}"]]]), ("messages", [[]]), ("eos", [])):
        async with here.connected(name) as program:
            await program.say(kind, "s", *rest)
            await program.fails("not_granted")
    gate.may_open.clear()
    async with here.connected(name) as program:
        await program.say("notify", "s", None)
        await program.push("s", [1])
        await program.fails("not_granted")
    gate.may_open.set()
    await here.until_empty()
    assert gate.records == []


async def test_credits_can_be_spent_to_the_last_and_not_beyond(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    gate.may_write.clear()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", range(WINDOW))
        await program.say("beat", 1)
        assert await program.expect("beat") == [1]  # The window is open to its last record.
        gate.may_write.set()
        await program.acked("s", WINDOW - 1)
        await program.got_back(WINDOW)
        gate.may_write.clear()
        await program.push("s", range(WINDOW, 2 * WINDOW - 1))
        await program.push("s", [2 * WINDOW])
        await program.push("s", [2 * WINDOW + 1])
        assert "1 record more" in await program.fails("overdraft")
    gate.may_write.set()
    await here.until_free(name, "s")


async def test_credits_are_the_session_s_and_not_the_stream_s(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    gate.may_write.clear()
    async with here.connected(name) as program:
        for stream in ("a", "b"):
            await program.have(stream)
        await program.push("a", range(WINDOW - 1))
        await program.push("b", range(2))
        await program.fails("overdraft")
    gate.may_write.set()


async def test_an_empty_list_of_records_is_nothing(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [])
        await program.push("s", [2])
        await program.push("s", [])
        await program.acked("s", 2)
        await program.got_back(1)


async def test_a_mapping_sees_id_key_event_time_and_payload(here: House) -> None:
    mapping = {"set": {"id": "meta.id", "k": "meta.key", "t": "meta.event_time", "v": "v"}}
    name = await here.publish(mapping=mapping)
    async with here.connected(name) as program:
        await program.have("s")
        records = [
            [1, 1_700_000_000_123_456, b"caf\xc3\xa9", b'{"v": 1}'],
            [2, None, None, b'{"v": 2}'],
            [3, -1_000_000, b"\xff", b'{"v": null}'],
            [4, 0, b"", None],
            [5],  # What is missing at the end is nil.
        ]
        await program.say("messages", "s", records)
        await program.acked("s", 5)
    table = name.replace("-", "_")
    assert [tuple(row) for row in await here.sql(f"SELECT id, k, t, v FROM {table} ORDER BY id")] == [
        (1, "café", 1_700_000_000.123456, 1),
        (2, None, None, 2),
        (3, "\\xff", -1.0, None),
        (4, "", 0.0, None),
        (5, None, None, None),
    ]


@pytest.mark.parametrize("payload", [b"", b"{", b"{}{}", b"nan", b'"\xff"', b"1e999", b'"\\ud800"', b"[" * 100_000])
async def test_a_payload_that_is_not_json_ends_its_session_before_it_can_stop_the_stream(
    here: House, payload: bytes
) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0])
        await program.acked("s", 0)
        await program.push("s", [1], payload)
        assert "a payload" in await program.fails("bad_payload")
    async with here.connected(name) as program:
        assert await program.have("s") == 0


async def test_text_is_taken_as_it_is_where_the_format_is_text(here: House) -> None:
    name = await here.publish(source={"type": "push", "format": "text"}, mapping=None)
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0], "not JSON: é".encode())
        await program.acked("s", 0)
        await program.push("s", [1], b"\xff")
        await program.fails("bad_payload")
    assert await here.ids(name, "body") == ["not JSON: é"]


async def test_records_that_the_mapping_leaves_out_are_durable_all_the_same(here: House) -> None:
    name = await here.publish(mapping={"where": "meta.id > 5", "set": {"id": "meta.id"}})
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", range(3))
        await program.acked("s", 2)
        await program.push("s", range(3, 8))
        assert await program.end("s") == 7
        await program.got_back(8)
    assert await here.ids(name) == [6, 7]


async def test_large_and_many_frames_arrive_whole_and_once(here: House) -> None:
    name = await here.publish()
    filler = b'{"x": "' + b"x" * 100_000 + b'"}'
    async with here.connected(name) as program:
        await program.have("s")
        for first in range(0, 200, 20):
            await program.push("s", range(first, first + 20), filler)
        for id in range(200, 700):
            await program.push("s", [id])
        await program.push("s", range(700, 20_700))
        assert await program.end("s") == 20_699
        await program.got_back(20_700)
    assert await here.ids(name) == list(range(20_700))


# Bad frames.


def messages_of(size: int) -> bytes:
    """A frame of exactly this many bytes, with one record."""
    hollow = len(pack(["messages", "bad", [[2**40, None, None, b'"' + b"x" * 70_000 + b'"']]])) - 70_000
    frame: bytes = pack(["messages", "bad", [[2**40, None, None, b'"' + b"x" * (size - hollow) + b'"']]])
    assert len(frame) == size
    return frame


good = pack(["messages", "bad", [[2**40, None, None, b"{}"]]])

BAD = {
    "one byte too large": (messages_of(4 * 1024 * 1024 + 1), "too_large"),
    "three times too large": (messages_of(12 * 1024 * 1024), "too_large"),
    "nothing": (b"", "bad_frame"),
    "truncated": (good[:-1], "bad_frame"),
    "truncated after its type": (good[:10], "bad_frame"),
    "a length that lies": (b"\xdd\xff\xff\xff\xff", "bad_frame"),
    "a text that lies": (b"\x92\xdb\xff\xff\xff\xff", "bad_frame"),
    "trailing bytes": (good + b"\xc0", "bad_frame"),
    "two frames in one": (good + good, "bad_frame"),
    "no array": (pack({"type": "eos"}), "bad_frame"),
    "a number": (pack(7), "bad_frame"),
    "an empty array": (pack([]), "bad_frame"),
    "a type that is no text": (pack([7, "s"]), "bad_frame"),
    "an unknown type": (pack(["delete", "bad"]), "unknown_frame"),
    "a type in upper case": (pack(["EOS", "bad"]), "unknown_frame"),
    "a type that is not UTF-8": (b"\x92\xa3e\xffs\xa3bad", "bad_frame"),
    "a stream that is not UTF-8": (b"\x92\xa3eos\xa2\xff\xfe", "bad_frame"),
    "half a surrogate": (b"\x92\xa3eos\xa3\xed\xa0\x80", "bad_frame"),
    "too few fields": (pack(["eos"]), "bad_frame"),
    "too many fields": (pack(["eos", "bad", 1]), "bad_frame"),
    "a record with too many fields": (pack(["messages", "bad", [[1, None, None, b"{}", 1]]]), "bad_frame"),
    "a record without an id": (pack(["messages", "bad", [[]]]), "bad_frame"),
    "a record that is no array": (pack(["messages", "bad", [1]]), "bad_frame"),
    "an id below zero": (pack(["messages", "bad", [[-1, None, None, b"{}"]]]), "bad_frame"),
    "an id of 64 bits": (pack(["messages", "bad", [[2**63, None, None, b"{}"]]]), "bad_frame"),
    "an id with a fraction": (pack(["messages", "bad", [[1.5, None, None, b"{}"]]]), "bad_frame"),
    "an id that is nil": (pack(["messages", "bad", [[None, None, None, b"{}"]]]), "bad_frame"),
    "a payload that is text": (pack(["messages", "bad", [[2**40, None, None, "{}"]]]), "bad_frame"),
    "a key that is text": (pack(["messages", "bad", [[2**40, None, "k", b"{}"]]]), "bad_frame"),
    "a time that is text": (pack(["messages", "bad", [[100, "now", None, b"{}"]]]), "bad_frame"),
    "an extension": (b"\x92\xa3eos\xd4\x01\x00", "bad_frame"),
    "depth": (b"\x91" * 100_000, "bad_frame"),
    "depth inside": (b"\x93\xa8messages\xa3bad" + b"\x91" * 100_000, "bad_frame"),
    "a stream that is too long": (pack(["eos", "x" * 201]), "bad_frame"),
    "a stream without a name": (pack(["eos", ""]), "bad_frame"),
    **{
        f"a node's {frame[0]}": (pack(frame), "unknown_frame")
        for frame in [
            ["ok", 1, 1, 1.0, []],
            ["notify_ack", "bad", True, None, 1, None, None],
            ["ack", 1, [["bad", 1]]],
            ["closed", "bad", 1],
            ["restart", None, None, "x"],
        ]
    },
}


@pytest_asyncio.fixture(scope="class", loop_scope="module")
async def bystander(here: House) -> AsyncIterator[Bystander]:
    """It pushes while others misbehave; in the end all its records are there once."""
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("good")
        found = Bystander(name, program)
        yield found
        assert await program.end("good") == found.pushed - 1
    assert await here.ids(name) == list(range(found.pushed))


@dataclass
class Bystander:
    """A session that does everything right."""

    name: str
    program: Program
    pushed: int = 0

    async def push(self, records: int) -> None:
        """So many more."""
        await self.program.push("good", range(self.pushed, self.pushed + records))
        self.pushed += records


@pytest_asyncio.fixture(scope="class", loop_scope="module")
async def target(here: House) -> str:
    """The datasource that bad frames are for."""
    return await here.publish()


class TestBadFrames:
    """All of them, while a bystander pushes."""

    @pytest.mark.parametrize("what", BAD)
    async def test_a_bad_frame_gets_an_error_and_harms_nobody_else(
        self, here: House, bystander: Bystander, target: str, what: str
    ) -> None:
        frame, code = BAD[what]
        async with here.connected(target) as program:
            position = await program.have("bad")
            next_id = 0 if position is None else position + 1
            await program.push("bad", [next_id])
            await program.acked("bad", next_id)
            await bystander.push(10)
            await program.socket.send(frame)
            await program.fails(code)
            await bystander.push(10)
            await bystander.program.acked("good", bystander.pushed - 1)
        await here.until_free(target, "bad")
        assert await here.ids(target) == list(range(next_id + 1))


async def test_a_frame_of_exactly_the_limit_is_taken(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("bad")
        await program.socket.send(messages_of(4 * 1024 * 1024))
        await program.acked("bad", 2**40)


async def test_a_frame_far_over_the_limit_is_answered_too_and_its_streams_are_free(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("bad")
        with suppress(ConnectionClosed):
            await program.socket.send(messages_of(17 * 1024 * 1024))
        assert "at most 4,194,304 bytes" in await program.fails("too_large")
    await here.until_free(name, "bad")
    assert await here.ids(name) == []


async def test_a_frame_may_come_in_fragments(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        frame = pack(["messages", "s", [[1, None, None, b"{}"]]])
        await program.socket.send([frame[:3], frame[3:4], frame[4:]])
        await program.acked("s", 1)


async def test_a_secret_in_the_wrong_place_is_not_echoed(here: House) -> None:
    name = await here.publish()
    secret = here.token
    for frame in (
        [secret],
        [secret, 1],
        ["hello", secret, 1, 1],
        ["hello", 1, [secret], name],
        ["hello", 1, secret, name, None, None, secret],
        {secret: secret},
        secret,
    ):
        async with here.connected() as program:
            await program.socket.send(pack(frame))
            async for _ in program.rest():  # Whatever is heard is searched for the token.
                pass
            assert program.socket.close_code == 4000


async def test_a_program_that_gives_up_says_so_and_its_streams_are_free(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.say("error", "mine", "I give up")
        assert [frame async for frame in program.rest()] == []
        assert program.socket.close_code == 1000
    await here.until_free(name, "s")


# The end of a stream.


async def test_an_empty_stream_closes_at_nothing(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        assert await program.end("s") is None
        assert (await here.row(name, "s"))["owner"] is None
        assert await program.have("s") is None


async def test_a_stream_closes_at_id_zero_and_can_be_had_again_on_the_same_connection(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0])
        assert await program.end("s") == 0
        assert await here.ids(name) == [0]
        assert (await here.row(name, "s"))["owner"] is None
        await program.got_back(1)
        assert await program.have("s") == 0
        await program.push("s", [0, 1])
        assert await program.end("s") == 1
        await program.got_back(3)
    assert await here.ids(name) == [0, 1]


async def test_records_after_the_end_are_an_error(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    for records in ([[2, None, None, b"{}"]], []):
        gate.may_write.clear()
        async with here.connected(name) as program:
            await program.have("s")
            await program.push("s", [1])
            await program.say("eos", "s")
            await program.say("messages", "s", records)
            await program.fails("not_granted")
        gate.may_write.set()
        await here.until_free(name, "s")


async def test_a_second_end_is_an_error(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    gate.may_write.clear()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [1])
        await program.say("eos", "s")
        await program.say("eos", "s")
        await program.fails("unexpected")
    gate.may_write.set()
    await here.until_free(name, "s")


async def test_a_stream_closes_only_when_its_last_record_is_durable(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0])
        await program.acked("s", 0)
        gate.may_write.clear()
        await program.push("s", [1])
        await program.push("s", [2])
        await program.say("eos", "s")
        await gate.writing.acquire()
        begun = here.node.push.barrier
        here.node.push.due.set()
        await here.until(_barrier(here), lambda number: number > begun + 1)
        answer = await program.ask("s")  # Nothing but the answer has come: it is not closed.
        assert answer["reason"] == "busy"
        gate.may_write.set()
        assert await program.expect("closed", "ack") == ["s", 2]
        assert program.acks["s"] == 2


def _barrier(here: House) -> Any:
    async def number() -> int:
        here.node.push.due.set()
        return here.node.push.barrier

    return number


async def test_a_stream_whose_sink_is_away_at_its_end_closes_when_it_is_back(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    async with here.connected(name) as program:
        await program.have("s")
        gate.failures = [NotConnected("away"), NotConnected("still away")]
        await program.push("s", [0, 1])
        assert await program.end("s") == 1
        await program.got_back(2)
    assert [record["id"] for record in gate.records] == [0, 1]
    assert gate.failures == []


async def test_a_stream_whose_table_is_locked_closes_when_the_lock_is_gone(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0])
        await program.acked("s", 0)
        async with here.node.database.transaction() as other:
            await other.execute(f"LOCK TABLE {name.replace('-', '_')}")
            await program.push("s", [1])
            await program.say("eos", "s")
            assert (await program.ask("s"))["reason"] == "busy"
            assert "s" not in program.acks or program.acks["s"] == 0
        assert await program.expect("closed", "ack") == ["s", 1]


# Beats.


async def test_a_beat_is_echoed_while_the_node_is_trusted_and_not_otherwise(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        for n in (0, 1, 2**63 - 1):
            await program.say("beat", n)
            assert await program.expect("beat") == [n]
        with monkeypatch.context() as patched:
            patched.setattr(here.node, "trust_left_s", lambda: 0.0)
            await program.say("beat", 7)
            assert (await program.ask("not a stream"))["reason"] == "bad_stream"  # And no beat before it.
        await program.say("beat", 8)
        assert await program.expect("beat") == [8]


async def test_a_program_that_says_nothing_for_three_beats_is_closed(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        monkeypatch.setattr(frames, "HEARTBEAT_S", 0.02)
        await program.say("beat", 1)
        await program.fails("silent")
    await here.until_free(name, "s")


async def test_a_program_that_never_reads_is_cut_off_and_harms_nobody(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await here.publish()
    monkeypatch.setattr(wire, "LAST_S", 0.1)
    async with here.connected(name) as innocent:
        await innocent.have("good")
        deaf, pushed = await _deaf(here, name), 0
        frame = _masked(pack(["notify", "no stream " * 20, None]))
        while len(here.node.push.sessions) == 2:
            deaf.write(frame * 1000)
            await innocent.push("good", [pushed])
            await innocent.acked("good", pushed)
            pushed += 1
        assert await innocent.end("good") == pushed - 1
        deaf.transport.abort()
    await here.until_empty()
    assert await here.ids(name) == list(range(pushed))


def _masked(data: bytes) -> bytes:
    """A binary message of a client, masked with zeros."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2)
    return b"\x82" + length + b"\0\0\0\0" + data


async def _deaf(here: House, name: str) -> asyncio.StreamWriter:
    """A session whose answers stay where they are."""
    host, _, port = here.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    head = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    writer.write(f"GET /push HTTP/1.1\r\nHost: x\r\n{head}Sec-WebSocket-Version: 13\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.write(_masked(pack(["hello", 1, here.token, name, None, None])))
    await reader.readuntil(b"ok")
    return writer


# How it is seen.


async def test_a_pushed_stream_is_shown_by_its_label_with_its_state(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("host-7")
        await program.push("host-7", [41])
        await program.acked("host-7", 41)
        shown = next(one for one in await here.node.streams.all() if (one.datasource, one.label) == (name, "host-7"))
        assert shown.name == f"{name}:host-7"
        assert (shown.label, shown.position, shown.owner) == ("host-7", 41, here.node.incarnation)
        found = await here.node.registry.get(name)

        async def states() -> list[tuple[Any, ...]]:
            rows, _ = (await here.node.registry.states.one(found.id)).of(found.id)
            return [(row.label, row.worker_status, row.detail) for row in rows]

        await here.until(states, lambda rows: rows == [("host-7", "RUNNING", "running")])
    await here.until(states, lambda rows: rows == [("host-7", "STOPPED", "stopped")])


async def test_a_new_version_reaches_the_streams_of_a_session_in_turns(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session may have thousands, and others must not wait until all of them were told."""
    assert here.node.manager is not None
    turn, told, real = 0, Counter[int](), here.node.manager._want

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def tell(handle: Any) -> None:
        told[turn] += 1
        real(handle)

    name = await here.publish(sink={"type": "blackhole"})
    async with here.connected(name) as program:
        for number in range(30):
            await program.have(f"s{number}")
        monkeypatch.setattr(manager, "WANTED_AT_ONCE", 5)
        monkeypatch.setattr(here.node.manager, "_want", tell)
        counting = asyncio.create_task(count_turns())
        await here.publish(name, sink={"type": "blackhole"}, mapping={"set": {"id": "meta.id + 1"}})
        await here.node.manager.look()
        counting.cancel()
        assert sum(told.values()) == 30
        assert max(told.values()) <= 5
