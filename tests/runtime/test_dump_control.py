"""What a dump is called, what may be asked of it, and the map of its chunks. No database is needed for these."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from uuid import uuid4

import pytest

from headgate.core.chunks.locks import State
from headgate.core.chunks.outcome import DumpWanted, Status
from headgate.errors import ConfigError, NotFound, Refused
from headgate.runtime.dumps import control, views
from headgate.runtime.dumps.processes import process_name
from headgate.store.dump_rows import DumpRow


def row(**facts: Any) -> DumpRow:
    """A dump that this process runs, unless told otherwise."""
    some = {field.name: None for field in fields(DumpRow)}
    some |= {"id": uuid4(), "status": Status.RUNNING, "wanted": DumpWanted.RUN, "is_run": True, "place": "here"}
    some |= {"error": "", "process": process_name(), **facts}
    return DumpRow(**{**some, "status": Status(some["status"]), "wanted": DumpWanted(some["wanted"])})


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({}, "running"),
        ({"wanted": "pause"}, "paused"),
        ({"wanted": "cancel"}, "cancelling"),
        ({"is_run": False}, "interrupted"),
        ({"is_run": False, "wanted": "pause"}, "interrupted"),
        ({"is_run": False, "place": "nodes"}, "waiting"),
        ({"is_run": False, "place": "nodes", "wanted": "pause"}, "paused"),
        ({"process": "dead"}, "interrupted"),
        ({"process": "elsewhere:1:1"}, "running"),
        ({"status": "failed", "error": "the target is gone"}, "failed"),
        ({"status": "failed", "error": "interrupted"}, "interrupted"),
        ({"status": "incomplete"}, "incomplete"),
        ({"status": "completed", "wanted": "pause"}, "completed"),
        ({"status": "cancelled", "wanted": "cancel"}, "cancelled"),
    ],
    ids=str,
)
def test_a_dump_has_one_word_for_how_it_stands(facts: dict[str, Any], status: str) -> None:
    if facts.get("process") == "dead":
        facts = {"process": f"{process_name()}0"}  # Of this host, but begun at another time than any that runs.
    assert views.status_of(row(**facts)) == status


class OneDump:
    """In the place of the store: one row, and what was written to it."""

    def __init__(self, **facts: Any) -> None:
        self.row = row(**facts)
        self.wanted: list[str] = []

    async def find(self, id: str) -> Any:
        if id == "none":
            raise NotFound("there is no such dump")
        return self.row

    async def set_wanted(self, dump: Any, wanted: str) -> None:
        self.wanted.append(wanted)


@pytest.mark.parametrize(
    ("act", "facts", "code"),
    [
        ("pause", {"status": "completed"}, "completed"),
        ("pause", {"is_run": False}, "interrupted"),
        ("pause", {"status": "failed"}, "failed"),
        ("resume", {}, "running"),
        ("resume", {"status": "completed"}, "completed"),
        ("resume", {"status": "cancelled"}, "cancelled"),
        ("resume", {"is_run": False}, "here"),
        ("cancel", {"status": "completed"}, "completed"),
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_refused_with_a_code_and_a_hint(
    act: str, facts: dict[str, Any], code: str
) -> None:
    dumps = OneDump(**facts)
    with pytest.raises(Refused) as refused:
        await getattr(control, act)(dumps, "some")
    assert refused.value.code == code
    assert "headgate dumps " in refused.value.hint
    assert dumps.wanted == []


async def test_a_rate_that_is_none_is_said_before_anything_is_looked_up() -> None:
    with pytest.raises(ConfigError):
        await control.set_rate(OneDump(), "none", "fast")  # type: ignore[arg-type]


def chunks(*states: str) -> list[views.ChunkView]:
    rest = {"table": "t", "target": "t", "lo": None, "hi": ("9",), "bytes": 0, "attempts": 0, "worker": None}
    return [
        views.ChunkView(**{**rest, "chunk": n, "state": State(state), "rows": 10, "error": ""})
        for n, state in enumerate(states, 1)
    ]


def test_each_chunk_has_a_square_as_long_as_there_is_room() -> None:
    found = views.squares(chunks("done", "leased", "planned"), 3)
    assert [(one.chunks, one.state) for one in found] == [("1", "done"), ("2", "leased"), ("3", "planned")]
    assert views.squares([], 3) == []


def test_chunks_that_share_a_square_show_the_worst_of_them() -> None:
    found = views.squares(chunks(*["done"] * 5, "failed", "planned", "leased", "done"), 3)
    assert [(one.chunks, one.state, one.rows) for one in found] == [
        ("1–3", "done", 30),
        ("4–6", "failed", 30),
        ("7–9", "leased", 30),
    ]
