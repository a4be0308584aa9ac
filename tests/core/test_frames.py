"""Frames of the push and the groups protocol: what they look like as bytes, and that nothing else is one.

`frames.json` and `group_frames.json` hold the vectors: for authors of clients in other languages too. `frame` is the
array, with bytes as `{"bin": "hex"}`; `hex` is the message; `canonical` says that Headgate itself writes it like this.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.core import frames
from headgate.core.frames import (
    MAX_FRAME_BYTES,
    MAX_GROUP_FRAME_BYTES,
    VERSION,
    AckFrame,
    ActiveFrame,
    BadFrame,
    BeatFrame,
    ConfirmFrame,
    Frame,
    FromClient,
    FromNode,
    GroupFromClient,
    GroupFromNode,
    JoinedFrame,
    JoinFrame,
    LeaveFrame,
    Message,
    MessagesFrame,
    NotifyFrame,
    StepDownFrame,
    decode_from_client,
    decode_from_node,
    decode_group_from_client,
    decode_group_from_node,
    encode,
)

HERE = Path(__file__).parent
REFERENCE = HERE.parents[1] / "docs" / "reference"


def vectors_of(protocol: str, file: str) -> list[dict[str, Any]]:
    """The vectors of a protocol; `by` is also how its decoder is called."""
    read: list[dict[str, Any]] = json.loads((HERE / file).read_text())
    return [vector | {"by": f"{protocol} {vector['from']}"} for vector in read]


VECTORS = vectors_of("push", "frames.json") + vectors_of("groups", "group_frames.json")
PAGES = {"push": REFERENCE / "push.md", "groups": REFERENCE / "groups-protocol.md"}
CODES = {"version", "bad_frame", "unknown_frame", "too_large"}
SECRET = "hg_s3cret"
WRONG = [SECRET.encode(), -1, 2**63, 2**64 - 1, 1.5, [SECRET], {SECRET: SECRET}, [[[]]], msgspec.msgpack.Ext(1, b"x")]

Decode: TypeAlias = Callable[[bytes], Frame]
DECODERS: dict[str, Decode] = {
    "push client": decode_from_client,
    "push node": decode_from_node,
    "groups client": decode_group_from_client,
    "groups node": decode_group_from_node,
}
UNIONS: dict[str, Any] = {
    "push client": FromClient,
    "push node": FromNode,
    "groups client": GroupFromClient,
    "groups node": GroupFromNode,
}
KINDS = {by: {kind.__struct_config__.tag: kind for kind in get_args(union)} for by, union in UNIONS.items()}
OF_TYPE: dict[str, Any] = {tag: kind for kinds in KINDS.values() for tag, kind in kinds.items()}

each_vector = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['by']}: {vector['name']}")
each_page = pytest.mark.parametrize("protocol", PAGES)
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
    decoded = DECODERS[vector["by"]](bytes.fromhex(vector["hex"]))
    assert decoded == frame_of(vector)
    assert type(decoded) is type(frame_of(vector))


@each_vector
def test_a_frame_is_written_as_its_bytes(vector: dict[str, Any]) -> None:
    frame = frame_of(vector)
    if vector["canonical"]:
        assert encode(frame).hex() == vector["hex"]
    assert DECODERS[vector["by"]](encode(frame)) == frame


def test_there_is_a_vector_for_every_frame_in_each_of_its_directions() -> None:
    for by, kinds in KINDS.items():
        assert {vector["frame"][0] for vector in VECTORS if vector["by"] == by} == kinds.keys()


def test_a_field_that_is_missing_at_the_end_is_nil() -> None:
    assert (
        decode_from_client(pack("notify", "s"))
        == NotifyFrame("s", None)
        == decode_from_client(pack("notify", "s", None))
    )
    assert decode_from_client(pack("messages", "s", [[5]])) == MessagesFrame("s", [Message(5, None, None, None)])
    assert decode_group_from_client(pack("join", 1, "t", "s", "g")) == JoinFrame(
        1, "t", "s", "g", None, None, None, None
    )


ids = st.integers(0, 2**63 - 1)
messages = st.builds(
    Message,
    ids,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=300),
)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200)


@given(names, st.lists(messages, max_size=20), st.lists(st.tuples(names, st.none() | ids), max_size=20), ids)
def test_every_frame_goes_there_and_back(
    name: str, records: list[Message], positions: list[tuple[str, int | None]], number: int
) -> None:
    for_node: list[FromClient] = [MessagesFrame(name, records), NotifyFrame(name, name), BeatFrame(number)]
    for_client: list[FromNode] = [AckFrame(number, positions), frames.ClosedFrame(name, number), BeatFrame(number)]
    assert [decode_from_client(encode(frame)) for frame in for_node] == for_node
    assert [decode_from_node(encode(frame)) for frame in for_client] == for_client


partitions = st.none() | st.integers(0, 2**31 - 1)


@given(names, ids, partitions, st.none() | st.floats(2.0, 3600.0), st.sampled_from(["active", "stepped_down"]))
def test_every_frame_of_a_group_goes_there_and_back(
    name: str, number: int, partition: int | None, lease_s: float | None, what: Literal["active", "stepped_down"]
) -> None:
    for_node: list[GroupFromClient] = [
        JoinFrame(number, name, name, name, partition, name, name, lease_s),
        ConfirmFrame(name, number, what),
        LeaveFrame(name),
        BeatFrame(number),
    ]
    for_client: list[GroupFromNode] = [
        JoinedFrame(name, number, lease_s or 10.0, [name]),
        ActiveFrame(name, number, number, partition),
        StepDownFrame(name, number, number),
        BeatFrame(number),
    ]
    assert [decode_group_from_client(encode(frame)) for frame in for_node] == for_node
    assert [decode_group_from_node(encode(frame)) for frame in for_client] == for_client


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
@pytest.mark.parametrize("kind", ["", "Beat", "beat ", "bea", "béat", SECRET, "x" * 60_000])
def test_an_unknown_type_is_refused_and_not_repeated(decode: Decode, kind: str) -> None:
    bad = refusal(decode, pack(kind, 7))
    assert bad.code == "unknown_frame"
    assert SECRET not in bad.text


def test_a_frame_of_the_other_direction_or_protocol_is_unknown() -> None:
    for vector in VECTORS:
        for by in DECODERS.keys() - {vector["by"]}:
            if vector["frame"][0] not in {"beat", "error"}:
                assert refusal(DECODERS[by], bytes.fromhex(vector["hex"])).code == "unknown_frame"


@each_vector
def test_a_frame_that_is_cut_anywhere_is_refused(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for length in range(len(data)):
        assert refusal(DECODERS[vector["by"]], data[:length]).code == "bad_frame"


@each_vector
def test_bytes_behind_a_frame_are_refused(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for tail in (b"\x00", b"\xc0", b"\xc1", b"\x90", b"tail", data):
        assert refusal(DECODERS[vector["by"]], data + tail).code == "bad_frame"


def is_newer(fields: list[Any]) -> bool:
    """Whether this is a first frame of a newer version."""
    return fields[0] in ("hello", "join") and type(fields[1]) is int and fields[1] > VERSION


@pytest.mark.parametrize(
    "fields",
    [[], [SECRET], [{"token": SECRET}, 7], [None] * 30, [SECRET, SECRET, *"abcdefg"]],
)
def test_a_newer_version_is_told_so_whatever_its_fields_are_and_nothing_is_repeated(fields: list[Any]) -> None:
    for by, first in (("push client", "hello"), ("groups client", "join")):
        bad = refusal(DECODERS[by], pack(first, VERSION + 1, *fields))
        assert (bad.code, bad.text) == ("version", "this node speaks version 1 of the protocol only")
        assert refusal(DECODERS[by], pack(first, VERSION, *fields, *[None] * 30)).code == "bad_frame"
        assert refusal(DECODERS[by], pack("beat", VERSION + 1, *fields, None)).code == "bad_frame"


@each_vector
def test_a_field_too_many_is_refused(vector: dict[str, Any]) -> None:
    fields = plain(vector["frame"])
    longest = len(msgspec.structs.fields(OF_TYPE[fields[0]])) + 1
    data = pack(*fields, *[None] * (longest - len(fields)), SECRET)
    bad = refusal(DECODERS[vector["by"]], data)
    assert bad.code == ("version" if is_newer(fields) else "bad_frame")
    assert SECRET not in bad.text


@each_vector
def test_a_field_of_the_wrong_type_is_refused_and_not_repeated(vector: dict[str, Any]) -> None:
    fields = plain(vector["frame"])
    for index in range(1, len(fields)):
        for wrong in WRONG:
            if fields[0] in {"ok", "joined"} and (
                (index == 3 and isinstance(wrong, int | float)) or (index, wrong) == (4, [SECRET])
            ):
                continue  # Seconds may be any number, and nodes any text.
            frame = [*fields[:index], wrong, *fields[index + 1 :]]
            bad = refusal(DECODERS[vector["by"]], pack(*frame))
            assert bad.code == ("version" if is_newer(frame) else "bad_frame")
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
    "fields",
    [
        ("join", 1, "t", "", "g"),
        ("join", 1, "t", "s", ""),
        ("join", 1, "t", "s", "x" * 201),
        ("join", 1, "t" * 1001, "s", "g"),
        ("join", 1, "t", "s", "g", -1),
        ("join", 1, "t", "s", "g", 2**31),
        ("join", 1, "t", "s", "g", None, "l" * 1001),
        ("join", 1, "t", "s", "g", None, None, "c" * 1001),
        ("join", 1, "t", "s", "g", None, None, None, 1.99),
        ("join", 1, "t", "s", "g", None, None, None, 3600.1),
        ("join", 1, "t", "s", "g", None, None, None, float("nan")),
        ("confirm", "", 5, "active"),
        ("confirm", "c", 5, "Active"),
        ("confirm", "c", 5, SECRET),
        ("confirm", "c", 5, ""),
        ("confirm", "c", 5, None),
        ("leave", ""),
        ("leave", "x" * 201),
    ],
    ids=lambda fields: repr(fields)[:40],
)
def test_a_field_of_a_group_beyond_its_limits_is_refused_and_not_repeated(fields: tuple[Any, ...]) -> None:
    bad = refusal(decode_group_from_client, pack(*fields))
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
    assert refusal(decode_group_from_client, b"\x92\xa5leave" + text).text == "text that is not UTF-8"
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
        b"\x99\xa4join\x01",
    ],
    ids=repr,
)
@pytest.mark.parametrize("opener", [b"\x91", b"\x81", b"\x81\xa1k", b"\xdd\x00\x00\x00\x01", b"\xdc\xff\xff"], ids=repr)
def test_deep_nesting_is_refused(decode: Decode, head: bytes, opener: bytes) -> None:
    assert refusal(decode, head + opener * 10_000).code in {"bad_frame", "unknown_frame"}
    assert refusal(decode, head + opener * 200_000).code in CODES


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


@each_page
def test_the_reference_lists_the_fields_of_every_frame(protocol: str) -> None:
    kinds = KINDS[f"{protocol} client"] | KINDS[f"{protocol} node"]
    rows = dict(re.findall(r"^\| `(\w+)` \| [→←↔] \| (.*?) \|", PAGES[protocol].read_text(), re.MULTILINE))
    for kind, struct in kinds.items():
        assert re.findall(r"`(\w+)`", rows[kind]) == [field.name for field in msgspec.structs.fields(struct)], kind
    assert rows.keys() == kinds.keys()


@each_page
def test_the_session_in_the_reference_is_made_of_these_frames(protocol: str) -> None:
    spoken = re.findall(r"^([→←]) (\[.*\])\n  ([0-9a-f]+)$", PAGES[protocol].read_text(), re.MULTILINE)
    kinds = KINDS[f"{protocol} client"] | KINDS[f"{protocol} node"]
    assert {array.split('"')[1] for _, array, _ in spoken} == kinds.keys()
    for arrow, array, data in spoken:
        frame = json.loads(re.sub(r"h'([0-9a-f]*)'", r'{"bin": "\1"}', array).replace("nil", "null"))
        decoded = DECODERS[f"{protocol} {'client' if arrow == '→' else 'node'}"](bytes.fromhex(data))
        assert decoded == frame_of({"frame": frame})
        assert encode(decoded).hex() == data


# Size.


def frame_of_size(size_bytes: int) -> bytes:
    """A frame of messages of exactly this size, which is large enough for the longest headers."""
    empty = len(encode(MessagesFrame("s", [Message(1, None, None, b"x" * 70_000)]))) - 70_000
    return encode(MessagesFrame("s", [Message(1, None, None, b"x" * (size_bytes - empty))]))


@pytest.mark.parametrize("limit_bytes", [MAX_FRAME_BYTES, 100_000])
def test_a_frame_may_be_as_large_as_the_limit_and_not_one_byte_larger(limit_bytes: int) -> None:
    for size_bytes in (limit_bytes - 1, limit_bytes):
        data = frame_of_size(size_bytes)
        assert len(data) == size_bytes
        assert isinstance(decode_from_client(data, limit_bytes), MessagesFrame)
    for size_bytes in (limit_bytes + 1, 10 * limit_bytes):
        bad = refusal(lambda data: decode_from_client(data, limit_bytes), frame_of_size(size_bytes))
        assert bad.code == "too_large"
        assert f"{size_bytes:,}" in bad.text
        assert f"{limit_bytes:,}" in bad.text


def test_a_frame_of_a_node_has_a_limit_too() -> None:
    data = encode(AckFrame(1, [("s", position) for position in range(1000)]))
    assert isinstance(decode_from_node(data, len(data)), AckFrame)
    assert refusal(lambda data: decode_from_node(data, len(data) - 1), data).code == "too_large"


def test_a_frame_of_a_group_has_a_limit_too() -> None:
    longest = JoinFrame(2**63 - 1, "🐦" * 1000, "🐦" * 200, "🐦" * 200, 2**31 - 1, "🐦" * 1000, "🐦" * 1000, 3600.0)
    data = encode(longest)
    assert decode_group_from_client(data) == longest
    assert refusal(decode_group_from_client, data.ljust(MAX_GROUP_FRAME_BYTES + 1, b"\0")).code == "too_large"
    assert refusal(decode_group_from_client, data.ljust(MAX_GROUP_FRAME_BYTES, b"\0")).code == "bad_frame"
    many = encode(JoinedFrame("c", 1, 10.0, ["http://10.0.0.2:8470"] * 10_000))
    assert isinstance(decode_group_from_node(many), JoinedFrame)
    assert refusal(lambda data: decode_group_from_node(data, len(data) - 1), many).code == "too_large"


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
