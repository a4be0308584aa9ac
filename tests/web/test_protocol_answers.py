"""What the references of the two protocols answer to authors of clients, each answer checked on a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headgate.core import frames
from headgate.core.push import notifier
from headgate.web.doors import groups as groups_door
from headgate.web.doors import push as push_door
from tests.waiting import LONG_S
from tests.web.pushing import House, house, numbers
from tests.web_node import Databases

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> str:
    return databases.make()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with house(database_url, tmp_path_factory.mktemp("node") / "home") as found:
        yield found


def dialled(here: House, path: str) -> connect:
    """A connection as any client would make it."""
    address = here.url.replace("http://", "ws://") + path
    return connect(address, compression=None, ping_interval=None, close_timeout=1)


async def say(socket: ClientConnection, *frame: Any) -> None:
    await socket.send(msgspec.msgpack.encode(frame))


async def hear(socket: ClientConnection) -> list[Any]:
    async with asyncio.timeout(LONG_S):
        found: list[Any] = msgspec.msgpack.decode(await socket.recv())  # type: ignore[arg-type]
    return found


async def fails(socket: ClientConnection) -> tuple[str, str, int | None]:
    """The last error frame, and the code that the connection was closed with."""
    frame: list[Any] = []
    try:
        while True:
            frame = await hear(socket)
    except ConnectionClosed:
        assert frame[0] == "error", frame
        return frame[1], frame[2], socket.close_code


async def joined(here: House, socket: ClientConnection, group: str, consumer: str | None = None) -> list[Any]:
    await say(socket, "join", 1, here.token, "invoices", group, None, None, consumer, None)
    answer = await hear(socket)
    assert answer[0] == "joined", answer
    return answer


def a_group() -> str:
    return f"group {next(numbers)}"


# Both.


@pytest.mark.parametrize("path", ["/push", "/groups"])
async def test_the_socket_is_the_node_s_url_with_the_path_of_the_door(here: House, path: str) -> None:
    async with dialled(here, path), dialled(here, f"{path}?from=anywhere"):
        pass
    for other in (f"{path}/", f"{path}/x", "/", "/api/nodes"):
        with pytest.raises(InvalidStatus, match="403"):
            await dialled(here, other)


@pytest.mark.parametrize("path", ["/push", "/groups"])
async def test_who_says_nothing_gets_silent(here: House, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    door = push_door if path == "/push" else groups_door
    monkeypatch.setattr(door, "HELLO_S", 0.05)
    async with dialled(here, path) as socket:
        assert await fails(socket) == ("silent", "no frame came for 0 s", 4000)


async def test_a_ping_is_answered_and_is_no_sign_of_life(here: House, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        monkeypatch.setattr(frames, "HEARTBEAT_S", 0.1)
        await program.say("beat", 1)
        async with asyncio.timeout(LONG_S):
            await (await program.socket.ping())

        async def pinging() -> None:
            while True:
                await program.socket.ping()
                await asyncio.sleep(0.02)

        pings = asyncio.create_task(pinging())
        await program.fails("silent")
        pings.cancel()


@pytest.mark.parametrize("path", ["/push", "/groups"])
@pytest.mark.parametrize("size_bytes", [16 * 1024 + 1, 4 * 1024 * 1024 + 1])
async def test_before_the_first_frame_is_accepted_a_message_has_16_kb(here: House, path: str, size_bytes: int) -> None:
    async with dialled(here, path) as socket:
        await socket.send(b"x" * size_bytes)
        assert await fails(socket) == ("too_large", "a message is too large; at most 16,384 bytes are taken", 4000)


async def test_a_message_to_groups_has_64_kb(here: House) -> None:
    async with dialled(here, "/groups") as socket:
        await joined(here, socket, a_group())
        await socket.send(b"x" * 65_537)
        assert await fails(socket) == ("too_large", "a message is too large; at most 65,536 bytes are taken", 4000)


@pytest.mark.parametrize(("path", "first"), [("/push", "hello"), ("/groups", "join")])
async def test_a_newer_version_gets_version_even_with_fields_that_nobody_knows(
    here: House, path: str, first: str
) -> None:
    for fields in (("TOKEN", "clicks"), ({"token": "TOKEN"}, [1, 2], "x", "y", "z", 1, 2, 3, 4, 5)):
        async with dialled(here, path) as socket:
            await say(socket, first, 2, *fields)
            assert await fails(socket) == ("version", "this node speaks version 1 of the protocol only", 4000)


SENT = "Zebra-77"


@pytest.mark.parametrize(
    ("path", "frame"),
    [
        ("/push", [SENT]),
        ("/push", ["hello", 1, SENT, SENT]),
        ("/push", ["hello", 1, "TOKEN", SENT]),
        ("/push", ["hello", 1, [SENT], SENT]),
        ("/push", ["hello", 77, SENT, SENT]),
        ("/groups", ["join", 1, SENT, SENT, SENT]),
        ("/groups", ["join", 77, SENT, SENT, SENT]),
        ("/groups", ["join", 1, "TOKEN", SENT, SENT, SENT]),
        ("/groups", ["join", 1, "TOKEN", "s", "workers"]),
        ("/groups", ["confirm", SENT, 77, SENT]),
    ],
)
async def test_an_error_repeats_nothing_that_was_sent(here: House, path: str, frame: list[Any]) -> None:
    async with dialled(here, path) as socket:
        await say(socket, *(here.token if field == "TOKEN" else field for field in frame))
        _, text, _ = await fails(socket)
        assert SENT not in text
        assert "77" not in text


async def test_an_error_in_records_repeats_nothing_that_was_sent(here: House) -> None:
    for wrong in ([[SENT, []]], [[SENT, [[78, None, None, b'{"Zebra-77":'], [77]]]], [[SENT, [[78], [77]]]]):
        name = await here.publish()
        async with here.connected(name) as program:
            await program.have(SENT)
            for stream, records in wrong:
                await program.say("messages", stream, records)
            await program.say("eos", "another Zebra-77")
            *_, (kind, _, text) = [frame async for frame in program.rest()]
            assert kind == "error"
            assert SENT not in text
            assert "77" not in text


async def test_another_partition_is_refused_without_the_names_that_were_sent(here: House) -> None:
    async with dialled(here, "/groups") as socket:
        await joined(here, socket, "Zebra-77")
        await say(socket, "join", 1, here.token, "invoices", "Zebra-77", 77, None, None, None)
        while (frame := await hear(socket))[0] != "error":
            pass
        assert frame == ["error", "partition_index_conflict", "the group has another partition"]


async def test_nodes_are_named_once_and_without_those_that_are_gone(here: House) -> None:
    query = "INSERT INTO headgate.node (id, name, lease_s, address, version) VALUES (gen_random_uuid(), $1, 60, $2, '')"
    await here.sql(query, "before it was killed", here.url)
    await here.sql(query, "gone", "http://gone:1")
    try:
        name = await here.publish()

        async def named() -> list[str]:
            async with here.connected(name) as program:
                found: list[str] = program.ok[3]
                return found

        await here.until(named, lambda found: found == [here.url])
    finally:
        await here.sql("DELETE FROM headgate.node WHERE name IN ('gone', 'before it was killed')")


# Push.


async def test_json_that_is_no_object_is_a_record_with_a_field_of_its_own(here: House) -> None:
    name = await here.publish(mapping={"set": {"id": "meta.id", "value": "value"}})
    async with here.connected(name) as program:
        await program.have("s")
        payloads = [b"7", b"-1", b'{"value": 8}', b"{}", b"null"]
        await program.say("messages", "s", [[n, None, None, one] for n, one in enumerate(payloads)])
        await program.acked("s", len(payloads) - 1)
    rows = await here.sql(f"SELECT value FROM {name.replace('-', '_')} ORDER BY id")
    assert [row["value"] for row in rows] == [7, -1, 8, None, None]


async def test_a_key_that_is_not_utf_8_is_escaped(here: House) -> None:
    name = await here.publish(mapping={"set": {"id": "meta.id", "k": "meta.key"}})
    async with here.connected(name) as program:
        await program.have("s")
        await program.say("messages", "s", [[1, None, b"\xffk", b"{}"]])
        await program.acked("s", 1)
    assert await here.ids(name, "k") == ["\\xffk"]


async def test_names_for_people_may_have_any_character_and_streams_may_not(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.say("notify", "caf\u00e9:1", "a name with \0 and \u2028")
        assert (await program.expect("notify_ack"))[:2] == ["caf\u00e9:1", True]
        for bad in ("a b", "a/b", "a\0"):
            assert (await program.ask(bad))["reason"] == "bad_stream"


async def test_the_10_001st_stream_is_too_many_until_one_is_closed(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "MOST_STREAMS", 2)
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("one")
        await program.have("two")
        answer = await program.ask("three")
        assert (answer["accepted"], answer["reason"], answer["retry_after_ms"]) == (False, "too_many", 2000)
        await program.end("one")
        await program.have("three")


async def test_a_restart_names_one_stream_each_unless_the_node_goes(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        for stream in ("one", "two"):
            await program.have(stream)
        await here.node.registry.set_enabled(name, False, "tester")
        told = [await program.expect("restart", "ack") for _ in range(2)]
        assert sorted(stream for stream, _, _ in told) == ["one", "two"]


# Groups.


async def test_beats_after_the_last_leave_are_echoed_and_the_connection_can_join_again(here: House) -> None:
    async with dialled(here, "/groups") as socket:
        group = a_group()
        _, consumer, *_ = await joined(here, socket, group)
        await say(socket, "leave", consumer)
        await say(socket, "beat", 7)
        while (frame := await hear(socket))[0] == "active":
            pass
        assert frame == ["beat", 7]
        assert (await joined(here, socket, group))[1] != consumer


async def test_a_leave_that_is_repeated_on_its_connection_is_not_joined(here: House) -> None:
    async with dialled(here, "/groups") as socket:
        _, consumer, *_ = await joined(here, socket, a_group())
        await say(socket, "leave", consumer)
        await say(socket, "leave", consumer)
        assert (await fails(socket))[0] == "not_joined"


async def test_a_leave_is_repeated_on_another_connection_by_coming_back_first(here: House) -> None:
    """Whether the first one arrived or not, the group is empty in the end, and nobody waits for a lease."""
    for is_lost in (True, False):
        group = a_group()
        async with dialled(here, "/groups") as socket:
            _, consumer, *_ = await joined(here, socket, group)
            if not is_lost:
                await say(socket, "leave", consumer)
        async with dialled(here, "/groups") as socket:
            _, back, *_ = await joined(here, socket, group, consumer)
            assert (back == consumer) is is_lost
            await say(socket, "leave", back)

            async def left(group: str = group) -> int:
                found = await here.node.group_rows.all("invoices", group)
                return sum(len(one.members) for one in found)

            await here.until(left, lambda found: found == 0)


async def test_nothing_but_joined_or_an_error_answers_the_first_join(here: House) -> None:
    group = a_group()
    async with dialled(here, "/groups") as socket:
        _, first, *_ = await joined(here, socket, group)
        await say(socket, "join", 1, here.token, "invoices", a_group(), None, None, None, None)
        kinds = []
        while not kinds or kinds[-1][0] != "joined":
            kinds.append(await hear(socket))
        before = kinds[:-1]
        assert all(kind == "active" and consumer == first for kind, consumer, *_ in before), before


async def test_a_connection_that_is_reset_keeps_its_place_for_a_lease(here: House) -> None:
    group = a_group()
    async with dialled(here, "/groups") as socket:
        _, consumer, *_ = await joined(here, socket, group)
        socket.transport.abort()

    async def connectivity() -> list[str]:
        found = await here.node.group_rows.all("invoices", group)
        return [member.connectivity for one in found for member in one.members]

    await here.until(connectivity, lambda found: found == ["disconnected"])
    async with dialled(here, "/groups") as socket:
        _, back, incarnation, *_ = await joined(here, socket, group, consumer)
        assert (back, incarnation) == (consumer, 1)


async def test_a_join_that_is_repeated_on_its_connection_raises_the_incarnation(here: House) -> None:
    group = a_group()
    async with dialled(here, "/groups") as socket:
        _, consumer, *_ = await joined(here, socket, group)
        await say(socket, "join", 1, here.token, "invoices", group, None, None, consumer, None)
        while (frame := await hear(socket))[0] == "active":
            pass
        assert frame[:3] == ["joined", consumer, 1]
