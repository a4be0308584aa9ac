"""What one JSON payload costs to decode, judged by counting before it is decoded.

A payload is decoded in one call that cannot be interrupted, and a thread is no way out, because no other thread runs
meanwhile. So a payload that would hold everybody up is not decoded at all. Each value has a price, in tenths of a
microsecond: a comma ends one, objects and lists cost twice as much, and numbers beyond the precision or the range of
doubles far more. Counting costs less than decoding does.
"""

from __future__ import annotations

MOST_COST = 200_000  # Takes about 20 ms to decode.
MOST_BYTES = 10_000_000  # Of texts alone, which take about as long.
_CHEAP_BYTES = 4_000  # A payload this small has no room for so much, of whatever kind.
_SPARSE_BYTES = 64 * 1024  # In one this small only numbers with huge exponents can be too much.
_BLOCK_BYTES = 1024 * 1024  # Counted in one go.
_HUGE_EXPONENT = 246  # Of three digits or more: up to 25 µs each.
_NUMBERS = bytes.maketrans(b"123456789E", b"000000000e")


def is_costly(payload: bytes) -> bool:
    """Whether decoding a JSON payload would hold everybody up. What stands within texts is left out, if it matters."""
    if len(payload) < _CHEAP_BYTES:
        return False
    if len(payload) > MOST_BYTES:
        return True
    if _cost(payload) <= MOST_COST:
        return False
    if payload.count(b'"') > MOST_COST:
        return True
    plain = payload.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _cost(b" ".join(plain.split(b'"')[::2])) > MOST_COST


def _cost(payload: bytes) -> int:
    """In blocks, so that a thread that counts gives others their turn in between."""
    if len(payload) <= _SPARSE_BYTES:
        return _HUGE_EXPONENT * _digits(payload).count(b"0e000")
    return sum(_cost_of_block(payload[at : at + _BLOCK_BYTES]) for at in range(0, len(payload), _BLOCK_BYTES))


def _cost_of_block(block: bytes) -> int:
    digits = _digits(block)
    cost = block.count(b",") + block.count(b":") // 2 + 2 * (block.count(b"[") + block.count(b"{"))
    cost += _HUGE_EXPONENT * digits.count(b"0e000") + 4 * digits.count(b"0e00")
    return cost + 3 * digits.count(b"0" * 16)


def _digits(block: bytes) -> bytes:
    """With 0 for every digit, and numbers without their signs and points."""
    return block.translate(_NUMBERS, b"+-.")
