"""What an edit of a position skips or reads again, as the sources that come with Headgate say it."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.connectors import plugins
from headgate.connectors.moves import NO_POSITION

A, B = {"file": "a.jsonl", "offset": 100, "mark": "x"}, {"file": "b.jsonl", "offset": 7}


def told(name: str, before: Any, after: Any) -> str:
    source = plugins.get(name).source
    assert source is not None
    assert source.tell_move is not None
    return source.tell_move(before, after)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (119, 99, "records 100 to 119 are read again"),
        (99, 119, "records 100 to 119 are skipped"),
        (99, 100, "record 100 is skipped"),
        (None, 4, "records 0 to 4 are skipped"),
        (4, None, "records 0 to 4 are read again"),
        (0, None, "record 0 is read again"),
        (1_000_000, 999_998, "records 999,999 to 1,000,000 are read again"),
        (7, 7, "nothing changes"),
        (None, None, "nothing changes"),
        ({"file": "a"}, 4, "records 0 to 4 are skipped"),
        (7, "7", NO_POSITION),
        (7, -1, NO_POSITION),
        (7, True, NO_POSITION),
        (7, 1.5, NO_POSITION),
        (7, {"a": 1}, NO_POSITION),
    ],
)
def test_positions_that_are_numbers(before: Any, after: Any, said: str) -> None:
    assert told("generator", before, after) == said
    assert told("webhook", before, after) == said.replace("record", "payload")
    pushed = f"{said}, if the program sends them" if said.endswith("read again") else said
    assert told("push", before, after) == pushed


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (A, {**A, "offset": 60}, "40 bytes of a.jsonl are read again"),
        (A, {**A, "offset": 2100}, "2,000 bytes of a.jsonl are skipped"),
        (A, {"file": "a.jsonl", "offset": 100}, "nothing changes"),
        (A, B, "what lies before byte 7 of b.jsonl is skipped"),
        (B, A, "what lies after byte 100 of a.jsonl is read again"),
        (None, A, "what lies before byte 100 of a.jsonl is skipped"),
        (A, None, "all files are read again from the beginning"),
        (None, None, "nothing changes"),
        (7, B, "what lies before byte 7 of b.jsonl is skipped"),
        (A, 7, NO_POSITION),
        (A, {"offset": 7}, NO_POSITION),
        (A, {"file": "a.jsonl", "offset": -1}, NO_POSITION),
    ],
)
def test_places_in_files(before: Any, after: Any, said: str) -> None:
    assert told("files", before, after) == said
