"""Durations, sizes, numbers of things and errors are written in one way everywhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest

from headgate.errors import ConfigError, Problem, Refused
from headgate.text import ago, counted, duration, error_line, has_zero_byte, one_line, parse_duration, roughly, size

SOURCE = Path(__file__).parent.parent / "src" / "headgate"


@pytest.mark.parametrize(
    ("span_s", "exact", "rough", "past"),
    [
        (-3.0, "0 ms", "0 s", "just now"),
        (0.0, "0 ms", "0 s", "just now"),
        (0.25, "250 ms", "0 s", "just now"),
        (0.9996, "1.0 s", "1 s", "just now"),
        (3.44, "3.4 s", "3 s", "3 s ago"),
        (9.97, "10 s", "10 s", "10 s ago"),
        (90.0, "90 s", "90 s", "90 s ago"),
        (600.0, "10 min", "10 min", "10 min ago"),
        (9000.0, "2 h", "2 h", "2 h ago"),
        (864_000.0, "10 d", "10 d", "10 d ago"),
    ],
)
def test_a_duration_has_one_figure_and_its_unit(span_s: float, exact: str, rough: str, past: str) -> None:
    assert (duration(span_s), roughly(span_s), ago(span_s)) == (exact, rough, past)


@pytest.mark.parametrize(("text", "span_s"), [("30s", 30), ("1.5m", 90), ("2 h", 7200), ("1d", 86_400)])
def test_a_duration_is_read(text: str, span_s: float) -> None:
    assert parse_duration(text) == span_s


@pytest.mark.parametrize("text", ["", "10", "m", "-1s", "10 minutes", "1w"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="30s, 10m, 2h or 1d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (999_960, "1.0 MB"), (2e16, "20,000.0 TB")],
)
def test_a_size_has_a_unit_that_suits_it(size_bytes: float, text: str) -> None:
    assert size(size_bytes) == text


def test_one_thing_is_singular() -> None:
    assert [counted(number, "row") for number in (0, 1, 2, 12_345)] == ["0 rows", "1 row", "2 rows", "12,345 rows"]
    assert counted(2, "entry", "entries") == "2 entries"


def test_a_text_of_several_lines_becomes_one_and_keeps_its_indent() -> None:
    assert one_line("  first  column \r\n\n   second\n") == "  first  column second"
    assert one_line("first\u2028second") == "first second"
    assert one_line("abcdef", 3) == "abc"


def test_an_error_without_a_text_is_called_by_its_type() -> None:
    assert one_line(TimeoutError()) == "TimeoutError"
    assert one_line(ValueError("\n a\n b")) == "a b"
    assert error_line(TimeoutError()) == "TimeoutError"
    assert error_line(ValueError("a\nb")) == "ValueError: a b"


def test_an_error_of_ours_says_its_hint_once() -> None:
    assert error_line(Refused("it runs", hint="stop it")) == "it runs (stop it)"
    assert error_line(Refused("it runs")) == "it runs"
    assert error_line(ConfigError("no such column", hint="see ds show")) == "no such column (see ds show)"
    assert error_line(ConfigError([Problem("sink", "is absent")])) == "sink: is absent"


def test_nobody_else_writes_durations_or_sizes_or_folds_lines() -> None:
    own_way = re.compile(r'"kB"|"min"\)|["\'] ["\']\.join\(str\(\w+\)\.split')
    for path in SOURCE.rglob("*.py"):
        if path.name != "text.py":
            assert not own_way.search(path.read_text()), f"{path.relative_to(SOURCE)} has its own way"


def test_text_needs_nothing_but_errors() -> None:
    tree = ast.parse((SOURCE / "text.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "headgate.errors"}


def test_a_zero_byte_is_found_in_json_and_a_backslash_before_the_same_letters_is_none() -> None:
    for value in ("\0", {"a\0": 1}, ["\\\0"]):
        assert has_zero_byte(msgspec.json.encode(value))
    for value in ("\\u0000", {"\\\\u0000": "u0000"}, 0):
        assert not has_zero_byte(msgspec.json.encode(value))
