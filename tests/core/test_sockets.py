"""What one WebSocket may cost a node: bytes before hello, idle frames, payloads that are costly to decode."""

from __future__ import annotations

import pytest

from headgate.core import sockets
from headgate.core.sockets import EARLY_BYTES, IDLE_AT_ONCE, IDLE_PER_S, Allowance, admitted, took

MEMBER = admitted(Allowance())


@pytest.mark.parametrize(
    ("allowance", "size_bytes", "is_too_early"),
    [
        (Allowance(), EARLY_BYTES, False),
        (Allowance(), EARLY_BYTES + 1, True),
        (MEMBER, EARLY_BYTES + 1, False),
    ],
)
def test_bytes_are_counted_until_the_first_frame_is_accepted(
    allowance: Allowance, size_bytes: int, is_too_early: bool
) -> None:
    assert sockets.is_too_early(took(allowance, size_bytes, 0, 0.0)) is is_too_early


def test_bytes_before_hello_add_up() -> None:
    allowance = Allowance()
    for _ in range(EARLY_BYTES // 1024):
        allowance = took(allowance, 1024, 0, 0.0)
        assert not sockets.is_too_early(allowance)
    assert sockets.is_too_early(took(allowance, 1, 0, 0.0))
    assert not sockets.is_too_early(admitted(allowance))


@pytest.mark.parametrize(
    ("last_bytes", "frames", "next_bytes"),
    [(1024, 0, 2048), (2048, 0, 4096), (8192, 0, 8192), (8192, 1, 1024), (1024, 40, 1024)],
)
def test_pieces_are_small_but_in_the_midst_of_a_large_message(last_bytes: int, frames: int, next_bytes: int) -> None:
    assert sockets.piece_bytes(last_bytes, frames) == next_bytes


@pytest.mark.parametrize(
    ("idle", "later_s", "waits_s"),
    [
        (IDLE_AT_ONCE, 0.0, 0.0),
        (IDLE_AT_ONCE + 1, 0.0, 1 / IDLE_PER_S),
        (IDLE_AT_ONCE + 500, 0.0, 5.0),
        (IDLE_AT_ONCE + 500, 2.0, 3.0),
        (IDLE_AT_ONCE + 500, 60.0, 0.0),
        (IDLE_AT_ONCE, -1.0, 0.0),  # A clock that goes back gives nothing.
    ],
)
def test_idle_frames_are_allowed_in_a_burst_and_then_at_a_rate(idle: int, later_s: float, waits_s: float) -> None:
    allowance = took(took(MEMBER, 10, idle, 100.0), 10, 0, 100.0 + later_s)
    assert sockets.wait_s(allowance) == pytest.approx(waits_s)


def test_who_was_quiet_for_a_day_may_not_send_more_at_once_than_others() -> None:
    allowance = took(took(MEMBER, 0, 1, 0.0), 0, IDLE_AT_ONCE + 100, 86_400.0)
    assert sockets.wait_s(allowance) == pytest.approx(1.0)


def test_who_is_not_admitted_does_not_wait_because_its_bytes_end_it_first() -> None:
    assert sockets.wait_s(took(Allowance(), 4096, 5000, 0.0)) == 0.0


@pytest.mark.parametrize(
    ("size_bytes", "is_control", "is_end", "is_idle"),
    [
        (0, True, True, True),
        (125, True, True, True),
        (0, False, True, True),
        (1, False, True, False),  # A small message is a message.
        (sockets.CRUMB_BYTES - 1, False, False, True),
        (sockets.CRUMB_BYTES, False, False, False),
    ],
)
def test_pings_empty_frames_and_crumbs_are_idle(size_bytes: int, is_control: bool, is_end: bool, is_idle: bool) -> None:
    assert sockets.is_idle(size_bytes, is_control=is_control, is_end=is_end) is is_idle
