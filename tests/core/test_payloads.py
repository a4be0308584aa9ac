"""What a JSON payload costs to decode."""

from __future__ import annotations

import pytest

from headgate.core import payloads


@pytest.mark.parametrize(
    ("payload", "is_costly"),
    [
        (b"[" + b"1," * 190_000 + b"1]", False),
        (b"[" + b"1," * 210_000 + b"1]", True),
        (b"[" + b"[]," * 60_000 + b"1]", False),
        (b"[" + b"[]," * 70_000 + b"1]", True),
        (b"{" + b'"a":1,' * 130_000 + b'"a":1}', False),
        (b"{" + b'"a":1,' * 140_000 + b'"a":1}', True),
        (b"[" + b'{"id":1,"n":"ada"},' * 5_000 + b"1]", False),
        (b'"' + b"1,2,[3],{4:5}\\n" * 150_000 + b'"', False),  # All of it is one text.
        (b'"' + b'\\\\\\"1,2,[3],{4:5}\\n' * 150_000 + b'"', False),
        (b"[" + b'"a",' * 210_000 + b"1]", True),
        (b"[" * 50_000, False),  # Too small to be looked at: the decoder refuses it soon enough.
        (b'"' + b"x" * (payloads.MOST_BYTES - 2) + b'"', False),
        (b'"' + b"x" * (payloads.MOST_BYTES - 1) + b'"', True),
    ],
)
def test_a_payload_is_costly_because_of_the_number_of_its_values(payload: bytes, is_costly: bool) -> None:
    assert payloads.is_costly(payload) is is_costly


@pytest.mark.parametrize(
    ("number", "most"),
    [
        (b"1e308", 812),
        (b"-1.7976931348623157E+308", 812),
        (b"5e-324", 812),
        (b"1e00308", 812),
        (b"1e23", 39_999),
        (b"1.5e-05", 39_999),
        (b"9007199254740993", 49_999),
        (b"900719925.4740993e7", 49_999),
        (b"9" * 4_300, 248),
        (b"0.25", 199_999),
    ],
)
def test_numbers_that_are_hard_to_read_cost_more_than_others(number: bytes, most: int) -> None:
    """Below a limit of numbers it is decoded, beyond it is not. A small payload is looked at too."""
    assert not payloads.is_costly(b"[" + (number + b",") * (most - 2) + b"1]")
    assert payloads.is_costly(b"[" + (number + b",") * (most + 2) + b"1]")


def test_what_looks_like_a_huge_number_within_a_text_costs_nothing() -> None:
    assert not payloads.is_costly(b"[" + b'"550e8400-e29b-41d4",' * 5_000 + b"1]")
