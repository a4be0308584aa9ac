"""What brokers send is read as an attacker would write it: any bytes, cut anywhere, of any size that they claim."""

from __future__ import annotations

import asyncio
import gzip
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.mqtt import packets
from headgate.connectors.mqtt.client import Login, Mqtt
from headgate.connectors.rabbitmq import messages
from headgate.connectors.rabbitmq.amqp import Amqp
from headgate.connectors.rabbitmq.fields import Cursor, header, properties_of, table
from headgate.connectors.rabbitmq.streams import Chunk, Packed, Streams
from headgate.connectors.wire import Address, Wire
from headgate.errors import ConnectorError, NotConnected

ADDRESS = Address((("broker", 1),), None, None)


class Transport(asyncio.Transport):
    """Goes nowhere, and says what was done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_cut = self.is_paused = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return self.is_cut

    def abort(self) -> None:
        self.is_cut = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def wires() -> list[Wire]:
    login = Login("c", is_5=True, is_clean=True, max_message_bytes=100)
    return [Amqp(ADDRESS, 100), Streams(ADDRESS), Mqtt(ADDRESS, login)]


def feed(wire: Wire, data: bytes, pieces: int = 1) -> Transport:
    transport = Transport()
    wire.connection_made(transport)
    for start in range(0, len(data), pieces):
        if not transport.is_cut:
            wire.data_received(data[start : start + pieces])
    return transport


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_in_any_pieces_end_at_most_the_connection(data: bytes, pieces: int) -> None:
    async def run() -> None:
        for wire in wires():
            transport = feed(wire, data, pieces)
            if transport.is_cut:
                with pytest.raises((NotConnected, ConnectorError)):
                    wire.check_alive()

    asyncio.run(run())


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_of_amqp_or_are_not(data: bytes) -> None:
    for one in (data, b"\x00\x53\x75" + data, b"\x00\x53\x73\xc0" + data, b"\x00\x53\x74\xc1" + data):
        try:
            body, said = messages.parse(one)
        except messages.NotAmqp:
            continue
        assert isinstance(body, bytes)
        assert isinstance(said, dict)


@given(st.binary(max_size=300))
def test_any_bytes_are_properties_or_as_much_of_them_as_can_be_read(data: bytes) -> None:
    assert isinstance(properties_of(data), dict)


@given(st.binary(max_size=200), st.binary(max_size=100))
def test_a_message_that_is_made_is_parsed_and_known_by_its_id(body: bytes, id: bytes) -> None:
    made = messages.make(body, id)
    assert messages.id_of(made) == id
    found, said = messages.parse(made)
    assert found == body
    assert "message_id" in said


def test_tables_that_are_nested_without_end_are_not_followed() -> None:
    inner: Any = {"x": 1}
    for _ in range(50):
        inner = {"x": inner}
    assert properties_of(header(0, {"headers": inner, "message_id": "m"})[12:]) == {}
    with pytest.raises(ValueError, match="nested"):
        Cursor(table(inner)).table()


def chunk(entries: list[bytes], number: int) -> Chunk:
    data = b"".join(entries)
    head = struct.pack(">BbHIqQQIIII", 0x50, 0, len(entries), number, 0, 1, 7, zlib.crc32(data), len(data), 0, 0)
    return Chunk(b"\0\x08\0\x01\0" + head + data)


def packed(codec: int, data: bytes, number: int, size: int) -> bytes:
    return struct.pack(">BHII", 0x80 | codec << 4, number, size, len(data)) + data


def test_what_was_compressed_together_has_its_offsets_whether_it_can_be_read_or_not() -> None:
    three = b"".join(struct.pack(">I", 1) + one for one in (b"a", b"b", b"c"))
    single = struct.pack(">I", 1) + b"z"
    cases = {
        (0, three, len(three)): [b"a", b"b", b"c"],
        (1, gzip.compress(three), len(three)): [b"a", b"b", b"c"],
        (2, b"snap", 100): [Packed(b"snap", "snappy"), Packed(b"", "snappy"), Packed(b"", "snappy")],
        (1, b"none", len(three)): [Packed(b"none", "gzip"), Packed(b"", "gzip"), Packed(b"", "gzip")],
        (0, three[:7], 7): [b"a", Packed(three[:7], "none"), Packed(b"", "none")],
    }
    for (codec, data, size), expected in cases.items():
        found = chunk([packed(codec, data, 3, size), single], 4)
        assert found.messages == [*expected, b"z"]
        assert found.last == 10


def test_a_bomb_is_not_unpacked_beyond_what_it_claims() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    found = chunk([packed(1, bomb, 2, 8)], 2)
    assert found.messages == [b"", b""]
    huge = chunk([packed(1, bomb, 1, 2**31)], 1)
    assert huge.messages == [Packed(bomb, "gzip")]


@pytest.mark.parametrize("number", [1, 5, 4_000_000_000])
def test_a_chunk_that_has_another_number_of_messages_is_damaged(number: int) -> None:
    with pytest.raises((ValueError, IndexError)):
        assert chunk([struct.pack(">I", 1) + b"a", struct.pack(">I", 1) + b"b"], number).messages


def test_a_chunk_with_a_flipped_bit_is_damaged() -> None:
    found = chunk([struct.pack(">I", 3) + b"abc"], 1)
    found._data = found._data[:-1] + b"d"
    with pytest.raises(ValueError, match="damaged"):
        assert found.messages


async def test_a_frame_that_claims_too_much_is_not_waited_for() -> None:
    for wire, data in zip(
        wires(),
        (
            b"\x03\0\x01\xff\xff\xff\xff" + b"x",
            b"\xff\xff\xff\xff" + b"x" * 8,
            b"\x40\xff\xff\xff\x7f" + b"x" * 200_000,
        ),
        strict=True,
    ):
        assert feed(wire, data).is_cut


async def test_of_a_message_that_is_too_large_only_the_beginning_is_kept() -> None:
    mqtt, body = Mqtt(ADDRESS, Login("c", is_5=True, is_clean=True, max_message_bytes=1000)), b"x" * 1_000_000
    large = packets.message("t", 7, 1, body, retain=False, is_5=True)
    small = packets.message("t", 8, 1, b"{}", retain=False, is_5=True)
    feed(mqtt, large + small, 4096)
    assert [(one.id, len(one.body), one.size_bytes) for one in mqtt.arrived] == [(7, 64 * 1024, 1_000_000), (8, 2, 2)]


async def test_who_waits_is_told_when_the_connection_ends() -> None:
    wire = Mqtt(ADDRESS, Login("c", is_5=True, is_clean=True))
    feed(wire, b"")
    waiting = [asyncio.ensure_future(wire.answer("x")), asyncio.ensure_future(wire.wait_for_more())]
    await asyncio.sleep(0)
    wire.connection_lost(None)
    with pytest.raises(NotConnected):
        await waiting[0]
    await waiting[1]
    with pytest.raises(NotConnected):
        wire.check_alive()


async def test_a_peer_that_is_silent_is_gone() -> None:
    wire = Mqtt(ADDRESS, Login("c", is_5=True, is_clean=True))
    transport = feed(wire, b"")
    wire.begin_beats(0.02)
    while not transport.is_cut:
        await asyncio.sleep(0.005)
    assert transport.sent.startswith(b"\xc0\x00")
    with pytest.raises(NotConnected, match="silent"):
        wire.check_alive()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://h", ((("h", 5672),), None, None, "", False)),
        ("amqps://u:p%40@h:1,[::1]:2/a%2Fb", ((("h", 1), ("::1", 2)), "u", "p@", "a/b", True)),
        ("amqp://u@h/", ((("h", 5672),), "u", None, "", False)),
    ],
)
def test_a_url_says_where_and_as_whom(url: str, expected: tuple[Any, ...]) -> None:
    found = Address.of(url, {"amqp": 5672, "amqps": 5671})
    assert (found.hosts, found.user, found.password, found.path, found.has_tls) == expected
    assert "p@" not in repr(found)
