"""Records that cannot be handled, on a real node: they are kept, their neighbours written, and the totals add up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors.api import (
    Batch,
    Connector,
    Grant,
    Options,
    Outgoing,
    Position,
    Progress,
    SinkKind,
    SourceKind,
    Totals,
    Unreadable,
)
from headgate.core import letters
from headgate.core.records import NOTHING
from headgate.errors import Bad, BadRecords, BatchRefused, EndOfStream
from headgate.store.letters import Filter
from tests.runtime.conftest import Harness

ALL = Filter()


class Given:
    """A source that has just these records, and ends. The position is the number of the last one."""

    def __init__(self, records: list[Any], at_once: int = 10, ends: bool = True) -> None:
        self.records = records
        self.at_once = at_once
        self.ends = ends
        self.acked: list[Position] = []

    def connector(self) -> Connector:
        return Connector("given", "gives", source=SourceKind(Options, lambda options, context: _Reading(self)))


class _Reading:
    def __init__(self, given: Given) -> None:
        self._given = given
        self._next = 0

    async def check(self) -> None: ...

    async def parts(self) -> list[str]:
        return [""]

    async def open(self, position: Position) -> None:
        self._next = 0 if position is None else position + 1

    async def read(self) -> Batch:
        first, given = self._next, self._given
        while not given.records[first:]:
            if given.ends:
                raise EndOfStream("that was all")
            await asyncio.sleep(0.01)
        some = given.records[first : first + given.at_once]
        self._next += len(some)
        return Batch(some, self._next - 1, place=lambda index: f"number {first + index}")

    async def ack(self, position: Position) -> None:
        self._given.acked.append(position)

    async def close(self) -> None: ...


class Taking:
    """A sink in memory. Records with `bad` are named, or only refused."""

    def __init__(self, names: bool) -> None:
        self.names = names
        self.written: list[dict[str, Any]] = []

    def connector(self) -> Connector:
        return Connector("taking", "takes", sink=SinkKind(Options, lambda options, context: self))

    async def check(self) -> None: ...

    async def open(self, grant: Grant) -> Progress | None:
        return None

    async def write(self, batch: Outgoing) -> None:
        assert not batch.letters, "only a sink that keeps letters is given any"
        bad = [index for index, record in enumerate(batch.records) if record.get("bad")]
        if bad and self.names:
            raise BadRecords([Bad(index, "bad", "is true") for index in bad])
        if bad:
            raise BatchRefused("there is a bad one")
        self.written += batch.records

    async def close(self) -> None: ...


Plug = Callable[..., None]
TAKING = {"type": "taking"}


async def totals(hg: Harness, name: str = "orders") -> Totals:
    """The totals of a datasource's stream as the registry has them."""
    found = await hg.sql(
        "SELECT s.* FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource WHERE d.name = $1", name
    )
    row = found[0]
    names = ("read", "written", "filtered", "dead_lettered", "skipped")
    return Totals(*(row[f"records_{column}"] for column in names))


async def open_letters(hg: Harness) -> list[tuple[str, str, str | None, str]]:
    """Place, stage, field and reason of the open letters, in the order in which they came."""
    kept = await hg.node.letters.page(ALL, "open", 1000)
    return [(one.place, one.stage, one.field, one.reason) for one in sorted(kept, key=lambda one: one.first_at)]


@pytest.mark.parametrize("names", [True, False])
async def test_bad_records_become_letters_and_their_neighbours_are_written(
    hg: Harness, plug: Plug, names: bool
) -> None:
    records = [{"id": n, "bad": n % 7 == 3} for n in range(50)]
    source, sink = Given(records), Taking(names)
    plug(source.connector())
    plug(sink.connector())
    await hg.apply(orders={"source": {"type": "given"}, "sink": TAKING})
    await hg.until("orders", status="STOPPED", detail="finished")
    assert sorted(one["id"] for one in sink.written) == [n for n in range(50) if n % 7 != 3]
    assert await totals(hg) == Totals(50, 43, 0, 7)
    found = await open_letters(hg)
    assert [place for place, *_ in found] == [f"number {n}" for n in range(50) if n % 7 == 3]
    why = ("sink", "bad", "is true") if names else ("sink", None, "there is a bad one")
    assert {one[1:] for one in found} == {why}
    assert source.acked[-1] == 49


async def test_what_cannot_be_mapped_or_read_becomes_a_letter_with_its_stage(hg: Harness, plug: Plug) -> None:
    records = [
        {"n": "1"},
        {"n": "x"},
        Unreadable(b"\xff{", "the body is not JSON"),
        {"n": "2"},
        {"n": "3", "skip": True},
    ]
    sink = Taking(names=True)
    plug(Given(records).connector())
    plug(sink.connector())
    mapping = {"where": "not skip", "set": {"n": "int(n)"}}
    await hg.apply(orders={"source": {"type": "given"}, "mapping": mapping, "sink": TAKING})
    await hg.until("orders", status="STOPPED", detail="finished")
    assert sink.written == [{"n": 1}, {"n": 2}]
    assert await totals(hg) == Totals(5, 2, 1, 2)
    first, second = await open_letters(hg)
    assert first[:3] == ("number 1", "mapping", "set.n")
    assert second == ("number 2", "source", None, "the body is not JSON")
    kept = {one.place: one.id for one in await hg.node.letters.page(ALL, "open", 10)}
    _, contents = await hg.node.letters.read(str(kept["number 2"]))
    assert contents is not None
    assert contents.payload == Unreadable(b"\xff{", "the body is not JSON")
    _, contents = await hg.node.letters.read(str(kept["number 1"]))
    assert contents is not None
    assert contents.payload == {"n": "x"}


async def test_an_element_of_a_list_fails_alone(hg: Harness, plug: Plug) -> None:
    records = [{"order": 1, "lines": [{"n": "1"}, {"n": "x"}, {"n": "3"}]}, {"order": 2, "lines": []}]
    sink = Taking(names=True)
    plug(Given(records).connector())
    plug(sink.connector())
    mapping = {"unnest": "lines", "set": {"order": "order", "n": "int(item.n)"}}
    await hg.apply(orders={"source": {"type": "given"}, "mapping": mapping, "sink": TAKING})
    await hg.until("orders", status="STOPPED", detail="finished")
    assert sink.written == [{"order": 1, "n": 1}, {"order": 1, "n": 3}]
    assert await totals(hg) == Totals(4, 2, 1, 1)
    ((place, *_),) = await open_letters(hg)
    assert place == "number 0, element 2"
    ((kept),) = await hg.node.letters.page(ALL, "open", 10)
    _, contents = await hg.node.letters.read(str(kept.id))
    assert contents is not None
    assert contents.payload == {"order": 1, "lines": [{"n": "x"}]}


async def test_skip_discards_and_counts(hg: Harness, plug: Plug) -> None:
    sink = Taking(names=True)
    plug(Given([{"id": n, "bad": n == 2} for n in range(5)]).connector())
    plug(sink.connector())
    await hg.apply(orders={"source": {"type": "given"}, "sink": TAKING, "on_error": "skip"})
    await hg.until("orders", status="STOPPED", detail="finished")
    assert await totals(hg) == Totals(5, 4, 0, 1, 1)
    assert await open_letters(hg) == []


async def test_fail_stops_the_stream_and_names_the_record(hg: Harness, plug: Plug) -> None:
    sink = Taking(names=True)
    plug(Given([{"id": n, "bad": n == 2} for n in range(5)]).connector())
    plug(sink.connector())
    await hg.apply(orders={"source": {"type": "given"}, "sink": TAKING, "on_error": "fail"})
    state = await hg.until("orders", status="ERROR")
    assert state["error"]["cause"] == "bad_record"
    assert state["error"]["message"] == "the record at number 2 cannot be written: bad: is true"
    assert await totals(hg) == NOTHING


async def test_too_many_letters_stop_the_stream_behind_them(hg: Harness, plug: Plug) -> None:
    sink = Taking(names=True)
    plug(Given([{"id": n, "bad": n % 2} for n in range(100)]).connector())
    plug(sink.connector())
    rule = {"stop_after": "20 in 10m"}
    await hg.apply(orders={"source": {"type": "given"}, "sink": TAKING, "dead_letters": rule})
    state = await hg.until("orders", status="ERROR", detail="quarantined")
    assert state["error"]["cause"] == "too_many_dead_letters"
    assert await totals(hg) == Totals(40, 20, 0, 20)
    await hg.node.registry.restart("orders", "tester")
    await hg.until_true(lambda: len(sink.written) == 40)
    await hg.until("orders", status="ERROR", detail="quarantined")
    assert await totals(hg) == Totals(80, 40, 0, 40)


async def test_a_payload_that_would_be_repeated_too_often_stops_the_stream_before_it(
    hg: Harness, plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each letter repeats what surrounds the list: a megabyte, for each of a hundred thousand elements."""
    monkeypatch.setattr("headgate.runtime.streams.batches.MOST_BYTES", 1_000_000)
    sink = Taking(names=True)
    payload = {"note": "x" * 10_000, "lines": [{"n": "x"} for _ in range(1000)]}
    plug(Given([{"lines": [{"n": 1}]}, payload], at_once=1).connector())
    plug(sink.connector())
    mapping = {"unnest": "lines", "set": {"n": "int(item.n)"}}
    await hg.apply(orders={"source": {"type": "given"}, "mapping": mapping, "sink": TAKING})
    state = await hg.until("orders", status="ERROR", detail="quarantined")
    assert state["error"]["cause"] == "too_many_dead_letters"
    assert "1,000 records of one batch cannot be handled" in state["error"]["message"]
    assert await totals(hg) == Totals(1, 1)
    assert await open_letters(hg) == []


async def test_a_hundred_in_a_row_stop_the_stream(hg: Harness, plug: Plug) -> None:
    plug(Given([{"id": n, "bad": True} for n in range(500)]).connector())
    plug(Taking(names=True).connector())
    await hg.apply(orders={"source": {"type": "given"}, "sink": TAKING})
    state = await hg.until("orders", status="ERROR", detail="quarantined")
    assert "100 records in a row" in state["error"]["message"]
    assert await totals(hg) == Totals(100, 0, 0, 100)


async def test_letters_are_replayed_by_the_run_once_the_cause_is_gone(hg: Harness, plug: Plug) -> None:
    source, sink = Given([{"n": str(n) if n % 5 else "x"} for n in range(20)], ends=False), Taking(names=True)
    plug(source.connector())
    plug(sink.connector())
    document = {"source": {"type": "given"}, "mapping": {"set": {"n": "int(n)"}}, "sink": TAKING}
    await hg.apply(orders=document)
    await hg.until_true(lambda: len(sink.written) == 16)
    await hg.until("orders", running=1)
    mended = {**document, "mapping": {"set": {"n": 'int(n) if n != "x" else -1'}}}
    await hg.apply(orders=mended)
    await hg.until("orders", version=2, status="RUNNING")
    source.records.append({"n": "100"})  # It proves the new version.
    await hg.until("orders", running=2)
    found = await hg.node.registry.get("orders")
    which = Filter(datasources=[found.id])
    asked = await hg.node.letters.ask(which, None, overwrite=False, any_key=True, actor="tester")
    assert asked == 4
    hg.node.waker.wake("letters")

    async def replayed() -> bool:
        return (await hg.node.letters.numbers(found.id)).replayed == 4

    await hg.until_true(replayed)
    assert [one["n"] for one in sink.written if one["n"] == -1] == [-1] * 4
    assert await open_letters(hg) == []
    source.records.append({"n": "101"})
    await hg.until_true(lambda: {"n": 101} in sink.written)

    async def are_counted() -> bool:
        return await totals(hg) == Totals(22, 18, 0, 4)  # A replayed record is not counted as written.

    await hg.until_true(are_counted)


async def test_a_letter_that_fails_again_stays_open_with_its_new_reason(hg: Harness, plug: Plug) -> None:
    source, sink = Given([{"n": "x"}], ends=False), Taking(names=True)
    plug(source.connector())
    plug(sink.connector())
    document = {"source": {"type": "given"}, "mapping": {"set": {"n": "int(n)"}}, "sink": TAKING}
    await hg.apply(orders=document)

    async def is_kept() -> bool:
        return len(await open_letters(hg)) == 1

    await hg.until_true(is_kept)
    await hg.apply(orders={**document, "mapping": {"set": {"n": "n", "bad": "True"}}})
    await hg.until("orders", version=2, status="RUNNING")
    found = await hg.node.registry.get("orders")
    await hg.node.letters.ask(Filter([found.id]), None, overwrite=False, any_key=True, actor="tester")
    hg.node.waker.wake("letters")

    async def has_failed_again() -> bool:
        (kept,) = await hg.node.letters.page(ALL, "open", 10)
        return kept.attempts == 2 and (kept.stage, kept.field, kept.reason) == ("sink", "bad", "is true")

    await hg.until_true(has_failed_again)
    assert sink.written == []


async def test_a_version_is_not_rejected_for_records_that_the_old_one_fails_on_too(hg: Harness, plug: Plug) -> None:
    source, sink = Given([{"n": "1"}, {"n": "x"}, {"n": "y"}, {"n": "2"}], at_once=1, ends=False), Taking(names=True)
    plug(source.connector())
    plug(sink.connector())
    document = {"source": {"type": "given"}, "sink": TAKING, "on_error": "fail"}
    await hg.apply(orders={**document, "mapping": {"set": {"n": "int(n)"}}})
    await hg.until("orders", status="ERROR", running=1)
    # It mends one of the two that wait, and fails at the other.
    await hg.apply(orders={**document, "mapping": {"set": {"n": 'int(n) if n != "x" else 0'}}})

    async def fails_at_its_own() -> bool:
        return "number 2" in str((await hg.state("orders"))["error"])

    await hg.until_true(fails_at_its_own)
    found = await hg.node.registry.get("orders")
    version = await hg.node.registry.datasources.version(found.id, 2)
    assert version is not None
    assert version.status == "published"
    await hg.apply(orders={**document, "mapping": {"set": {"n": 'int(n) if n in ("1", "2") else 0'}}})
    await hg.until_true(lambda: [one["n"] for one in sink.written] == [1, 0, 0, 2])


async def test_a_broken_version_is_rejected_and_the_old_one_goes_on(
    hg: Harness, plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "IN_A_ROW", 5)
    source, sink = Given([{"n": "1"}], at_once=1, ends=False), Taking(names=True)
    plug(source.connector())
    plug(sink.connector())
    document = {"source": {"type": "given"}, "sink": TAKING}
    await hg.apply(orders={**document, "mapping": {"set": {"n": "int(n)"}}})
    await hg.until("orders", running=1)
    await hg.apply(orders={**document, "mapping": {"set": {"n": "timestamp(n) + n"}}})
    await hg.until("orders", version=2)
    source.records += [{"n": str(n)} for n in range(2, 30)]

    async def is_rejected() -> bool:
        return "rejected" in await hg.events("orders")

    await hg.until_true(is_rejected)
    await hg.until("orders", version=1, status="RUNNING")
    await hg.until_true(lambda: {"n": 29} in sink.written)
    assert len(await open_letters(hg)) == 5


async def test_the_record_is_in_no_log_event_or_state(
    hg: Harness, plug: Plug, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = "pearl-in-the-payload"
    records = [{"n": marker}, {"n": "1", "bad": marker}, Unreadable(marker.encode(), "the body is not JSON")]
    plug(Given(records).connector())
    plug(Taking(names=True).connector())
    mapping = {"set": {"n": "int(n)", "bad": "bad"}}
    await hg.apply(orders={"source": {"type": "given"}, "mapping": mapping, "sink": TAKING})
    await hg.until("orders", status="STOPPED", detail="finished")
    assert len(await open_letters(hg)) == 3
    tables = ("dead_letter", "datasource_state", "datasource_events", "log_line", "stream", "stream_history")
    for table in tables:
        assert marker not in str(await hg.sql(f"SELECT t::text FROM headgate.{table} t")), table
        rows = await hg.sql(f"SELECT * FROM headgate.{table}")
        assert marker.encode() not in repr(rows).encode(), table
    said = capsys.readouterr()
    assert marker not in said.out + said.err


async def test_letters_into_a_file_are_kept_with_the_checkpoint(hg: Harness, tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"id": n}) if n % 4 else "{oops" for n in range(40)]
    path.write_text("\n".join(lines) + "\n")
    source = {"type": "files", "path": str(path), "batch": 7}
    await hg.apply(orders={"source": source, "sink": {"type": "files", "path": str(out)}})
    await hg.until("orders", status="STOPPED", detail="finished")
    written = [json.loads(line)["id"] for line in out.read_text().splitlines()]
    assert written == [n for n in range(40) if n % 4]
    assert await totals(hg) == Totals(40, 30, 0, 10)
    offsets = [place for place, *_ in await open_letters(hg)]
    assert offsets[:2] == [f"{path}, offset 0", f"{path}, offset {sum(len(line) + 1 for line in lines[:4])}"]
