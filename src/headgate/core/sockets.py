"""What one WebSocket may cost a node, whatever it sends.

What arrives on a connection is taken in *pieces*, and each connection works for a *turn* before the next one does. So a
sender of very many small frames slows itself, and delays others by a turn. Frames that carry nothing (pings, pongs,
empty frames, crumbs of a message, beats) are *idle*: a lawful program needs a few of them a second. A connection that
sends more is read no faster than these are allowed, so that a flood of them costs next to nothing. Before its first
frame is accepted, anyone can be behind a connection: what it may send until then is a few kilobytes in all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SMALL_PIECE_BYTES = 1024  # A piece full of the smallest frames takes about 1 ms.
LARGE_PIECE_BYTES = 8192  # In the midst of a large message. Should it end in the first byte: about 8 ms.
TURN_S = 0.0005  # An ack comes after some twenty rounds of the loop, and each may have a turn of somebody else in it.
EARLY_BYTES = 16 * 1024  # Several times the longest first frame.
IDLE_AT_ONCE = 1000
IDLE_PER_S = 100.0  # Forty times what a program on the shortest lease needs.
CRUMB_BYTES = 256  # A part of a message that is smaller, and not its end, is idle.
UNREAD_BYTES = 8 * 1024 * 1024  # Several times the largest frame of a node: an ack that names 10,000 streams.


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a connection has used of what it may."""

    is_admitted: bool = False  # Its first frame was accepted.
    early_bytes: int = 0  # What it sent before.
    idle: float = 0.0  # Idle frames that count against it.
    at_s: float = 0.0


def took(allowance: Allowance, size_bytes: int, idle: int, now_s: float) -> Allowance:
    """A piece of what it sent was taken, with this many idle frames in it."""
    before = max(0.0, allowance.idle - max(0.0, now_s - allowance.at_s) * IDLE_PER_S)
    early_bytes = allowance.early_bytes + (0 if allowance.is_admitted else size_bytes)
    return replace(allowance, early_bytes=early_bytes, idle=before + idle, at_s=now_s)


def piece_bytes(last_bytes: int, frames: int) -> int:
    """How much to take next, if the last piece had this many bytes and this many frames ended in it."""
    return min(2 * last_bytes, LARGE_PIECE_BYTES) if frames == 0 else SMALL_PIECE_BYTES


def admitted(allowance: Allowance) -> Allowance:
    """Its first frame was accepted."""
    return replace(allowance, is_admitted=True)


def is_too_early(allowance: Allowance) -> bool:
    """Whether it sent more than it may before its first frame was accepted."""
    return not allowance.is_admitted and allowance.early_bytes > EARLY_BYTES


def wait_s(allowance: Allowance) -> float:
    """How long nothing more is taken from it. Before it is admitted its bytes are counted, which ends it sooner."""
    return max(0.0, allowance.idle - IDLE_AT_ONCE) / IDLE_PER_S if allowance.is_admitted else 0.0


def is_idle(size_bytes: int, *, is_control: bool, is_end: bool) -> bool:
    """Whether a WebSocket frame carries nothing: a ping, an empty message, a crumb."""
    return is_control or size_bytes == 0 or (not is_end and size_bytes < CRUMB_BYTES)
