"""Frames of the push protocol: what they look like as bytes, and that nothing else is one.

`frames.json` holds the vectors: for authors of clients in other languages too. `frame` is the array, with bytes as
`{"bin": "hex"}`; `hex` is the message; `canonical` says that Headgate itself writes it like this.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.core import frames
from headgate.core.frames import (
    MAX_FRAME_BYTES,
    Ack,
    BadFrame,
    BeatFrame,
    Frame,
    FromClient,
    FromNode,
    Message,
    Messages,
    Notify,
    decode_from_client,
    decode_from_node,
    encode,
)

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "frames.json").read_text())
CLIENT = [vector for vector in VECTORS if vector["from"] == "client"]
NODE = [vector for vector in VECTORS if vector["from"] == "node"]
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "push.md"
CODES = {"bad_frame", "unknown_frame", "too_large"}
SECRET = "hg_s3cret"
WRONG = [SECRET.encode(), -1, 2**63, 2**64 - 1, 1.5, [SECRET], {SECRET: SECRET}, [[[]]], msgspec.msgpack.Ext(1, b"x")]

Decode: TypeAlias = Callable[[bytes], Frame]
DECODERS: dict[str, Decode] = {"client": decode_from_client, "node": decode_from_node}
OF_TYPE: dict[str, Any] = {kind.__struct_config__.tag: kind for kind in (*get_args(FromClient), *get_args(FromNode))}

each_vector = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['from']}: {vector['name']}")
each_decoder = pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)


def pack(*fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


def plain(value: Any) -> Any:
    """A vector's value, with its bytes."""
    if isinstance(value, dict):
        return bytes.fromhex(value["bin"])
    return [plain(item) for item in value] if isinstance(value, list) else value


def frame_of(vector: dict[str, Any]) -> Frame:
    """The frame that a vector's array stands for."""
    kind, *fields = plain(vector["frame"])
    if kind == "messages":
        fields[1] = [Message(*message) for message in fields[1]]
    if kind == "ack":
        fields[1] = [(stream, position) for stream, position in fields[1]]
    frame: Frame = OF_TYPE[kind](*fields)
    return frame


def refusal(decode: Decode, data: bytes) -> BadFrame:
    """What is said against this; every other exception fails the test."""
    with pytest.raises(BadFrame) as caught:
        decode(data)
    assert caught.value.code in CODES
    assert caught.value.text
    assert len(caught.value.text) < 200
    assert str(caught.value) == caught.value.text
    return caught.value


# What frames look like.


@each_vector
def test_a_frame_is_read_from_its_bytes(vector: dict[str, Any]) -> None:
    decoded = DECODERS[vector["from"]](bytes.fromhex(vector["hex"]))
    assert decoded == frame_of(vector)
    assert type(decoded) is type(frame_of(vector))


@each_vector
def test_a_frame_is_written_as_its_bytes(vector: dict[str, Any]) -> None:
    frame = frame_of(vector)
    if vector["canonical"]:
        assert encode(frame).hex() == vector["hex"]
    assert DECODERS[vector["from"]](encode(frame)) == frame


def test_there_is_a_vector_for_every_frame_in_each_of_its_directions() -> None:
    for vectors, union in ((CLIENT, FromClient), (NODE, FromNode)):
        assert {vector["frame"][0] for vector in vectors} == {k.__struct_config__.tag for k in get_args(union)}


def test_a_field_that_is_missing_at_the_end_is_nil() -> None:
    assert decode_from_client(pack("notify", "s")) == Notify("s", None) == decode_from_client(pack("notify", "s", None))
    assert decode_from_client(pack("messages", "s", [[5]])) == Messages("s", [Message(5, None, None, None)])


ids = st.integers(0, 2**63 - 1)
messages = st.builds(
    Message,
    ids,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=300),
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)


@given(names, st.lists(messages, max_size=20), st.lists(st.tuples(names, st.none() | ids), max_size=20), ids)
def test_every_frame_goes_there_and_back(
    name: str, records: list[Message], positions: list[tuple[str, int | None]], number: int
) -> None:
    for_node: list[FromClient] = [Messages(name, records), Notify(name, name), BeatFrame(number)]
    for_client: list[FromNode] = [Ack(number, positions), frames.Closed(name, number), BeatFrame(number)]
    assert [decode_from_client(encode(frame)) for frame in for_node] == for_node
    assert [decode_from_node(encode(frame)) for frame in for_client] == for_client


# What is none.


@each_decoder
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",  # The one byte that MessagePack does not use.
        pack(),
        pack(None),
        pack(7),
        pack(b"beat", 7),
        pack(["beat", 7]),
        msgspec.msgpack.encode(None),
        msgspec.msgpack.encode(7),
        msgspec.msgpack.encode("beat"),
        msgspec.msgpack.encode(b"beat"),
        msgspec.msgpack.encode({"beat": 7}),
        msgspec.msgpack.encode({0: "beat", 1: 7}),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"beat")),
        b'["beat",7]',
    ],
    ids=repr,
)
def test_what_is_no_array_that_begins_with_a_type_is_refused(decode: Decode, data: bytes) -> None:
    assert refusal(decode, data).code == "bad_frame"


@each_decoder
@pytest.mark.parametrize("kind", ["", "Beat", "beat ", "bea", "béat", SECRET, "x" * 100_000])
def test_an_unknown_type_is_refused_and_not_repeated(decode: Decode, kind: str) -> None:
    bad = refusal(decode, pack(kind, 7))
    assert bad.code == "unknown_frame"
    assert SECRET not in bad.text


def test_a_frame_of_the_other_direction_is_unknown() -> None:
    for vector in VECTORS:
        other = "node" if vector["from"] == "client" else "client"
        if vector["frame"][0] not in {"beat", "error"}:
            assert refusal(DECODERS[other], bytes.fromhex(vector["hex"])).code == "unknown_frame"


@each_vector
def test_a_frame_that_is_cut_anywhere_is_refused(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for length in range(len(data)):
        assert refusal(DECODERS[vector["from"]], data[:length]).code == "bad_frame"


@each_vector
def test_bytes_behind_a_frame_are_refused(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for tail in (b"\x00", b"\xc0", b"\xc1", b"\x90", b"tail", data):
        assert refusal(DECODERS[vector["from"]], data + tail).code == "bad_frame"


@each_vector
def test_a_field_too_many_is_refused(vector: dict[str, Any]) -> None:
    fields = plain(vector["frame"])
    longest = len(msgspec.structs.fields(OF_TYPE[fields[0]])) + 1
    data = pack(*fields, *[None] * (longest - len(fields)), SECRET)
    bad = refusal(DECODERS[vector["from"]], data)
    assert bad.code == "bad_frame"
    assert SECRET not in bad.text


@each_vector
def test_a_field_of_the_wrong_type_is_refused_and_not_repeated(vector: dict[str, Any]) -> None:
    fields = plain(vector["frame"])
    for index in range(1, len(fields)):
        for wrong in WRONG:
            if fields[0] == "ok" and (
                (index == 3 and isinstance(wrong, int | float)) or (index, wrong) == (4, [SECRET])
            ):
                continue  # Seconds may be any number, and nodes any text.
            bad = refusal(DECODERS[vector["from"]], pack(*fields[:index], wrong, *fields[index + 1 :]))
            assert bad.code == "bad_frame"
            assert SECRET not in bad.text


@pytest.mark.parametrize(
    "message",
    [
        [],
        None,
        7,
        {},
        SECRET,
        [None],
        [-1],
        [2**63],
        [2**64 - 1],
        [1.0],
        [True],
        ["1"],
        [1, SECRET],
        [1, 1.5],
        [1, 2**63],
        [1, b"1"],
        [1, None, SECRET],
        [1, None, 7],
        [1, None, [SECRET]],
        [1, None, None, SECRET],
        [1, None, None, {"a": 1}],
        [1, None, None, b"x", None],
    ],
    ids=repr,
)
def test_a_record_of_the_wrong_shape_is_refused_and_not_repeated(message: Any) -> None:
    for records in ([message], [[0], message], [[0], message, [9]]):
        bad = refusal(decode_from_client, pack("messages", "s", records))
        assert bad.code == "bad_frame"
        assert SECRET not in bad.text


@pytest.mark.parametrize(
    "position", [[], ["s"], ["s", -1], ["s", 2**63], ["s", "1"], [None, 1], ["s", 1, 1], "s", None]
)
def test_a_position_of_the_wrong_shape_is_refused(position: Any) -> None:
    assert refusal(decode_from_node, pack("ack", 1, [["s", 1], position])).code == "bad_frame"


@pytest.mark.parametrize("name", ["", "x" * 201, "機" * 201], ids=len)
@pytest.mark.parametrize("frame", [("notify",), ("eos",), ("messages", [])], ids=lambda frame: frame[0])
def test_a_name_that_is_empty_or_too_long_is_refused(frame: tuple[Any, ...], name: str) -> None:
    assert refusal(decode_from_client, pack(frame[0], name, *frame[1:])).code == "bad_frame"


def test_text_that_is_too_long_is_refused_and_not_repeated() -> None:
    for fields in ((SECRET * 200, "clicks"), (SECRET, "c" * 1001), (SECRET, "clicks", "p" * 1001)):
        bad = refusal(decode_from_client, pack("hello", 1, *fields))
        assert bad.code == "bad_frame"
        assert SECRET not in bad.text


@pytest.mark.parametrize(
    "bad_text", [b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"], ids=repr
)
def test_text_that_is_not_utf_8_is_refused(bad_text: bytes) -> None:
    text = bytes([0xA0 | len(bad_text)]) + bad_text
    assert refusal(decode_from_client, b"\x92\xa6notify" + text).text == "text that is not UTF-8"
    assert refusal(decode_from_client, b"\x94\xa5hello\x01" + text + b"\xa1d").text == "text that is not UTF-8"
    assert refusal(decode_from_client, b"\x92" + text + b"\x07").text == "text that is not UTF-8"
    assert refusal(decode_from_node, b"\x93\xa3ack\x01\x91\x92" + text + b"\x01").text == "text that is not UTF-8"
    assert refusal(decode_from_node, b"\x93\xa5error" + text + b"\xa1t").text == "text that is not UTF-8"


@each_decoder
@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x92",
        b"\x92\xa4beat",
        b"\x93\xa8messages\xa1s",
        b"\x93\xa8messages\xa1s\x91\x94\x01\xc0\xc0",
        b"\x93\xa3ack\x01",
    ],
    ids=repr,
)
@pytest.mark.parametrize("opener", [b"\x91", b"\x81", b"\x81\xa1k", b"\xdd\x00\x00\x00\x01", b"\xdc\xff\xff"], ids=repr)
def test_deep_nesting_is_refused(decode: Decode, head: bytes, opener: bytes) -> None:
    assert refusal(decode, head + opener * 200_000).code in {"bad_frame", "unknown_frame"}


@each_decoder
@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x92\xdb\xff\xff\xff\xffbeat",
        b"\x93\xa8messages\xa1s\xdd\xff\xff\xff\xff",
        b"\x93\xa8messages\xa1s\x91\x94\x01\xc0\xc0\xc6\xff\xff\xff\xffx",
        b"\x93\xa3ack\x01\xdd\xff\xff\xff\xff",
        b"\x95\xa2ok\x01\x01\xca\x3f\x00\x00\x00\xdd\xff\xff\xff\xff\xa1a",
    ],
    ids=repr,
)
def test_a_header_that_promises_more_than_there_is_costs_nothing(decode: Decode, data: bytes) -> None:
    assert refusal(decode, data).code in {"bad_frame", "unknown_frame"}


# What the reference says.


def test_the_reference_lists_the_fields_of_every_frame() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [→←↔] \| (.*?) \|", REFERENCE.read_text(), re.MULTILINE))
    for kind, struct in OF_TYPE.items():
        assert re.findall(r"`(\w+)`", rows[kind]) == [field.name for field in msgspec.structs.fields(struct)], kind
    assert rows.keys() == OF_TYPE.keys()


def test_the_session_in_the_reference_is_made_of_these_frames() -> None:
    spoken = re.findall(r"^([→←]) (\[.*\])\n  ([0-9a-f]+)$", REFERENCE.read_text(), re.MULTILINE)
    assert {array.split('"')[1] for _, array, _ in spoken} == OF_TYPE.keys()
    for arrow, array, data in spoken:
        frame = json.loads(re.sub(r"h'([0-9a-f]*)'", r'{"bin": "\1"}', array).replace("nil", "null"))
        decoded = DECODERS["client" if arrow == "→" else "node"](bytes.fromhex(data))
        assert decoded == frame_of({"frame": frame})
        assert encode(decoded).hex() == data


# Size.


def frame_of_size(size_bytes: int) -> bytes:
    """A frame of messages of exactly this size, which is large enough for the longest headers."""
    empty = len(encode(Messages("s", [Message(1, None, None, b"x" * 70_000)]))) - 70_000
    return encode(Messages("s", [Message(1, None, None, b"x" * (size_bytes - empty))]))


@pytest.mark.parametrize("limit_bytes", [MAX_FRAME_BYTES, 100_000])
def test_a_frame_may_be_as_large_as_the_limit_and_not_one_byte_larger(limit_bytes: int) -> None:
    for size_bytes in (limit_bytes - 1, limit_bytes):
        data = frame_of_size(size_bytes)
        assert len(data) == size_bytes
        assert isinstance(decode_from_client(data, limit_bytes), Messages)
    for size_bytes in (limit_bytes + 1, 10 * limit_bytes):
        bad = refusal(lambda data: decode_from_client(data, limit_bytes), frame_of_size(size_bytes))
        assert bad.code == "too_large"
        assert f"{size_bytes:,}" in bad.text
        assert f"{limit_bytes:,}" in bad.text


def test_a_frame_of_a_node_has_a_limit_too() -> None:
    data = encode(Ack(1, [("s", position) for position in range(1000)]))
    assert isinstance(decode_from_node(data, len(data)), Ack)
    assert refusal(lambda data: decode_from_node(data, len(data) - 1), data).code == "too_large"


def test_what_is_too_large_is_not_even_looked_at() -> None:
    assert refusal(lambda data: decode_from_client(data, 3), b"\xc1\xc1\xc1\xc1").code == "too_large"


# Fuzz.


def reads_or_refuses(data: bytes) -> None:
    """Anything else is raised, and fails the test."""
    for decode in DECODERS.values():
        with contextlib.suppress(BadFrame):
            frame = decode(data)
            assert encode(decode(encode(frame))) == encode(frame)


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    reads_or_refuses(data)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid frame to which something has happened."""
    data = bytearray.fromhex(draw(st.sampled_from(VECTORS))["hex"])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        to = draw(st.integers(at, len(data)))
        match draw(st.sampled_from(["flip", "cut", "insert", "double", "replace"])):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:to]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "double":
                data[at:at] = data[at:to]
            case "replace" if data:
                data[at] = draw(st.integers(0, 255))
    return bytes(data)


@settings(max_examples=1000)
@given(mutated())
@example(b"\x92\xa4beat\xcf\x80\x00\x00\x00\x00\x00\x00\x00")
def test_frames_to_which_something_has_happened_are_read_or_refused(data: bytes) -> None:
    reads_or_refuses(data)
