"""Frames of the push and the groups protocol: one binary WebSocket message is one MessagePack array `[type, field, …]`.

Every frame is a frozen struct whose fields are the array's, in order; a field that is missing at the end is nil. The
decoder takes exactly one frame of a known type, with fields of the right types and nothing after them. Everything else
raises `BadFrame`, whose code goes into an error frame: a peer that sends nonsense gets an answer, and no other peer is
harmed."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from headgate.core.sockets import EARLY_BYTES

VERSION = 1
MAX_FRAME_BYTES = 4 * 1024 * 1024
WINDOW = 65_536  # Records that a session may have under way. Credits count them.
HEARTBEAT_S = 5.0
MISSED_BEATS = 3  # A peer that misses this many is gone.
MAX_GROUP_FRAME_BYTES = 64 * 1024  # The longest texts that a join may have, several times over.
SHORTEST_LEASE_S, LONGEST_LEASE_S = 2.0, 3600.0

Unsigned: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # What PostgreSQL and every language can hold.
Moment: TypeAlias = Annotated[int, msgspec.Meta(le=2**63 - 1)]  # Microseconds since 1970; MessagePack ends it below.
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=1000)]
_NO_NUL = "^[^\\0]*$"  # PostgreSQL takes none, and here any other name will do.
GroupName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=_NO_NUL)]
GroupLabel: TypeAlias = Annotated[str, msgspec.Meta(max_length=1000, pattern=_NO_NUL)]
Partition: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
LeaseS: TypeAlias = Annotated[float, msgspec.Meta(ge=SHORTEST_LEASE_S, le=LONGEST_LEASE_S)]


class Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """One record."""

    id: Unsigned
    event_time: Moment | None = None
    key: bytes | None = None
    payload: bytes | None = None


Messages: TypeAlias = Annotated[list[Message], msgspec.Meta(max_length=WINDOW)]  # No one has credits for more.


class _Frame(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """What all frames have in common."""


# Push.


class HelloFrame(_Frame, frozen=True, tag="hello"):
    """The first frame of a client."""

    version: Unsigned
    token: Text
    datasource: Text
    program: Text | None = None
    instance: Text | None = None


class OkFrame(_Frame, frozen=True, tag="ok"):
    """The answer to hello: how much may be under way, and where else to go."""

    credits: Unsigned
    max_frame: Unsigned
    heartbeat_s: float
    nodes: list[str]


class NotifyFrame(_Frame, frozen=True, tag="notify"):
    """A client asks to push this stream."""

    stream: Name
    name: Text | None = None  # For people.


class NotifyAckFrame(_Frame, frozen=True, tag="notify_ack"):
    """Whether it may, from where, and under which epoch; or why not, and when to ask again."""

    stream: str
    accepted: bool
    position: Unsigned | None = None
    epoch: Unsigned | None = None
    reason: str | None = None
    retry_after_ms: Unsigned | None = None


class MessagesFrame(_Frame, frozen=True, tag="messages"):
    """Records of one stream; ids rise."""

    stream: Name
    messages: Messages


class AckFrame(_Frame, frozen=True, tag="ack"):
    """Credits given back, and how far each stream is durable."""

    credits: Unsigned
    positions: list[tuple[str, Unsigned | None]]


class EosFrame(_Frame, frozen=True, tag="eos"):
    """There will be no more of this stream for now."""

    stream: Name


class ClosedFrame(_Frame, frozen=True, tag="closed"):
    """Everything up to the end of the stream is durable, and the stream is given back."""

    stream: str
    position: Unsigned | None = None


class RestartFrame(_Frame, frozen=True, tag="restart"):
    """Go elsewhere, or ask again: with this stream, or with all of them if it is nil."""

    stream: str | None = None
    address: str | None = None
    reason: str | None = None


# Groups.


class JoinFrame(_Frame, frozen=True, tag="join"):
    """The first frame of a consumer."""

    version: Unsigned
    token: Text
    stream: GroupName
    group: GroupName
    partition: Partition | None = None  # Of a super stream.
    label: GroupLabel | None = None  # For people.
    consumer: Text | None = None  # Who it was, if it comes back.
    lease_s: LeaseS | None = None  # What it would like; the first of a group decides.
    fenced: bool | None = None  # Its writes carry the epoch; nil: they may not.


class JoinedFrame(_Frame, frozen=True, tag="joined"):
    """The answer to join: who it is, how long it may believe, and where else to go."""

    consumer: str
    incarnation: Unsigned
    lease_s: float
    nodes: list[str]


class ActiveFrame(_Frame, frozen=True, tag="active"):
    """You are active, under this epoch."""

    consumer: str
    incarnation: Unsigned
    epoch: Unsigned
    partition: Partition | None = None


class StepDownFrame(_Frame, frozen=True, tag="step_down"):
    """Finish what you are doing, and confirm with this epoch."""

    consumer: str
    incarnation: Unsigned
    epoch: Unsigned


class ConfirmFrame(_Frame, frozen=True, tag="confirm"):
    """An order is answered."""

    consumer: Name
    epoch: Unsigned
    what: Literal["active", "stepped_down"]


class LeaveFrame(_Frame, frozen=True, tag="leave"):
    """The consumer is gone, and does nothing any more."""

    consumer: Name


# Both.


class BeatFrame(_Frame, frozen=True, tag="beat"):
    """Sent by the client, echoed by the node."""

    n: Unsigned


class ErrorFrame(_Frame, frozen=True, tag="error"):
    """Something is wrong with what the peer sent. The sender of this frame closes the connection."""

    code: str
    text: str


FromClient: TypeAlias = HelloFrame | NotifyFrame | MessagesFrame | EosFrame | BeatFrame | ErrorFrame
FromNode: TypeAlias = OkFrame | NotifyAckFrame | AckFrame | ClosedFrame | RestartFrame | BeatFrame | ErrorFrame
GroupFromClient: TypeAlias = JoinFrame | ConfirmFrame | LeaveFrame | BeatFrame | ErrorFrame
GroupFromNode: TypeAlias = JoinedFrame | ActiveFrame | StepDownFrame | BeatFrame | ErrorFrame
Frame: TypeAlias = FromClient | FromNode | GroupFromClient | GroupFromNode


class BadFrame(Exception):
    """What was received is not a frame."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


OTHER_VERSION = BadFrame("version", f"this node speaks version {VERSION} of the protocol only")

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()
_from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
_from_node: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)
_group_from_client: msgspec.msgpack.Decoder[GroupFromClient] = msgspec.msgpack.Decoder(GroupFromClient)
_fields: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])
_group_from_node: msgspec.msgpack.Decoder[GroupFromNode] = msgspec.msgpack.Decoder(GroupFromNode)


def encode(frame: Frame) -> bytes:
    """A frame as it is sent. A field that older nodes do not know is left out unless it says something."""
    if isinstance(frame, JoinFrame) and frame.fenced is None:
        return _encoder.encode(("join", *msgspec.structs.astuple(frame)[:-1]))
    return _encoder.encode(frame)


def decode_from_client(data: bytes, max_bytes: int = MAX_FRAME_BYTES) -> FromClient:
    """What a client sent; raises BadFrame."""
    return _decode(_from_client, data, max_bytes, "hello")


def decode_from_node(data: bytes, max_bytes: int = 16 * MAX_FRAME_BYTES) -> FromNode:
    """What a node sent; raises BadFrame."""
    return _decode(_from_node, data, max_bytes)


def decode_group_from_client(data: bytes, max_bytes: int = MAX_GROUP_FRAME_BYTES) -> GroupFromClient:
    """What a consumer sent; raises BadFrame."""
    return _decode(_group_from_client, data, max_bytes, "join")


def decode_group_from_node(data: bytes, max_bytes: int = 16 * MAX_GROUP_FRAME_BYTES) -> GroupFromNode:
    """What a node sent to a consumer; raises BadFrame."""
    return _decode(_group_from_node, data, max_bytes)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes, max_bytes: int, first: str = "") -> _T:
    if len(data) > max_bytes:
        raise BadFrame("too_large", f"a frame of {len(data):,} bytes; at most {max_bytes:,} are taken")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise (OTHER_VERSION if _is_newer(data, first) else _bad(error)) from None


def _is_newer(data: bytes, first: str) -> bool:
    """Whether this is the first frame of a newer version, whose fields we do not know: it says so itself."""
    if len(data) > EARLY_BYTES:
        return False
    try:
        kind, version = (msgspec.msgpack.decode(field) for field in _fields.decode(data)[:2])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return False
    return bool(first) and kind == first and type(version) is int and version > VERSION


def _bad(error: Exception) -> BadFrame:
    """The decoder's messages name types and places, and the value only of a word that is not one of a few."""
    said = str(error)
    if isinstance(error, msgspec.ValidationError) and "Invalid value" in said and "$[0]" in said:
        return BadFrame("unknown_frame", "this type of frame is unknown")
    if isinstance(error, UnicodeDecodeError):
        return BadFrame("bad_frame", "text that is not UTF-8")
    if said.startswith("Invalid enum value"):
        said = "a word that has no meaning here"
    return BadFrame("bad_frame", f"the frame cannot be read: {said}")
