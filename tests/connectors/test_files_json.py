"""JSON files in bulk: arrays and lines, cut by records, and never whole in memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.connectors.api.bulk import PLAIN, Job, Mode, StorageError
from headgate.connectors.files import json_array, jsonl
from headgate.connectors.plugins import open_reader, open_writer, whole
from tests.connectors.test_files_bulk import (
    EDGE_ROWS,
    EDGES,
    OTHER,
    job_for,
    put,
    ranges_of,
    read_rows,
    span,
)

quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

texts = st.text(st.sampled_from('ab"\\[]{},:\n é'), max_size=5)
records = st.lists(
    st.fixed_dictionaries(
        {"a": texts, "b": st.lists(texts, max_size=2), "c": st.dictionaries(texts, texts, max_size=2)}
    ),
    max_size=12,
)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@quick
@given(records, st.integers(1, 5), st.sampled_from([None, 2]), st.booleans(), st.integers(1, 40))
async def test_chunks_of_an_array_together_are_the_array(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    size: int,
    indent: int | None,
    with_bom: bool,
    block: int,
) -> None:
    """Wherever a block ends: in a string, before a bracket, between a backslash and what it escapes."""
    path = tmp_path_factory.mktemp("json") / "t.json"
    text = json.dumps(rows, indent=indent, ensure_ascii=False)
    path.write_bytes((b"\xef\xbb\xbf" if with_bom else b"") + b" \n" + text.encode() + b"\n \n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_array, "BLOCK", block)
        assert await read_rows(f"json:{path}", rows=size) == rows


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv"])
@pytest.mark.parametrize("block", [7, 1 << 20])
async def test_each_chunk_of_a_file_has_as_many_rows_as_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, block: int
) -> None:
    """Though records are of very different lengths, and some hold newlines."""
    for module in (json_array, jsonl):
        monkeypatch.setattr(module, "BLOCK", block)
    rows = [{"id": str(number), "text": "x\n" * (number % 7) + '"' * (number % 3)} for number in range(25)]
    path = tmp_path / f"t.{ending}"
    if ending == "csv":
        cells = (f'"{row["id"]}","{row["text"].replace(chr(34), chr(34) * 2)}"\n' for row in rows)
        path.write_text("id,text\n" + "".join(cells))
    else:
        lines = [json.dumps(row) for row in rows]
        path.write_text(f"[{', '.join(lines)}]" if ending == "json" else "\n".join(lines))
    reader = open_reader(whole(str(path)))
    table = await reader.describe("t")
    counts = [
        sum([piece.rows async for piece in reader.query(table, one, reader.languages[0], PLAIN)])
        for one in await ranges_of(reader, table, 10)
    ]
    assert counts == [10, 10, 5]


async def test_empty_lines_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('\n{"a": 1}\n\n \n{"a": 2}\n{"a": 3}\r\n\r\n{"a": 4}')
    reader = open_reader(f"jsonl:{path}")
    table = await reader.describe("t")
    found = [[row["a"] for row in await rows_in(reader, table, one)] for one in await ranges_of(reader, table, 2)]
    assert found == [[1, 2], [3, 4]]


async def rows_in(reader: Any, table: Any, range: Any) -> list[dict[str, Any]]:
    return [row async for piece in reader.query(table, range, reader.languages[0], PLAIN) for row in piece.data]


@pytest.mark.parametrize("text", ["[]", " [ \n ] ", "\ufeff[]"])
async def test_an_empty_array_has_no_rows(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    reader = open_reader(f"json:{path}")
    assert await reader.top(await reader.describe("t")) is None


async def test_lines_in_a_file_called_json_are_read_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert await read_rows(f"json:{path}", rows=1) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1},\n{"a": tru}]', r"t.json, line 2 \(byte 11\): not JSON"),
        ('[{"a": 1},\n 5]', r"line 2 \(byte 12\): an element is not an object"),
        ('[{"a": 1},\n [5]]', r"line 2 \(byte 12\): an element is not an object"),
        ('[{"a": 1},\n "five"]', r"line 2 \(byte 12\): an element is not an object"),
        ('[,{"a": 1}]', r"byte 1\): no element precedes this comma"),
        ("[,]", r"byte 1\): no element precedes this comma"),
        ('[{"a": 1},, {"a": 2}]', r"byte 10\): no element precedes this comma"),
        ('[{"a": 1}, , {"a": 2}]', r"byte 11\): no element precedes this comma"),
        ('[{"a": 1},]', "no element follows the last comma"),
        ('[{"a": 1} {"a": 2}]', r"byte 10\): a comma is missing before this element"),
        ('[{"a": 1}, {"a": [2]', "the last element does not end"),
        ('[{"a": 1}', "does not end with"),
        ('[{"a": 1},\n{"a": 2},\n{"b": 3}]', r"line 3 .*'b' is new"),
    ],
)
@pytest.mark.parametrize("block", [1, 3, 1 << 20])
@pytest.mark.parametrize("rows", [1, 100])
async def test_what_is_wrong_with_an_array_is_said_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str, block: int, rows: int
) -> None:
    monkeypatch.setattr(json_array, "BLOCK", block)
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(StorageError, match=message):
        await read_rows(f"json:{path}?sample=1", rows=rows)


@pytest.mark.parametrize("element", ["1", '"text"', "[1]", "null"])
async def test_an_array_of_plain_values_is_refused_at_its_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, element: str
) -> None:
    """However long it is: none of it is kept."""
    monkeypatch.setattr(json_array, "BLOCK", 64)
    read_to: list[int] = []
    pread = os.pread

    def noted(file: int, size: int, at: int) -> bytes:
        read_to.append(at + size)
        return pread(file, size, at)

    monkeypatch.setattr(os, "pread", noted)
    path = tmp_path / "t.json"
    path.write_text(f"[{','.join([element] * 10_000)}]")
    with pytest.raises(StorageError, match=r"byte 1\): an element is not an object"):
        await read_rows(f"json:{path}")
    assert max(read_to) <= 65


async def test_space_between_elements_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "BLOCK", 64)
    path = tmp_path / "t.json"
    path.write_text('[{"a": 1}' + " " * 1000 + "," + "\n" * 1000 + '{"a": 2}]')
    size = path.stat().st_size - 2
    with path.open("rb") as file:
        elements = json_array.Elements(path, 1, is_first=True)
        blocks = [data for _, data in json_array._blocks(file.fileno(), 1, 1 + size, elements)]
    assert max(map(len, blocks)) <= 128
    assert await read_rows(f"json:{path}", rows=1) == [{"a": 1}, {"a": 2}]


async def test_every_kind_of_value_is_written_into_an_array_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    job = job_for(EDGES)
    await put(f"json:{path}", job, EDGE_ROWS[:2], span(None, 1))
    await put(f"json:{path}", job, EDGE_ROWS[2:], span(1, 2))
    await open_writer(f"json:{path}").finish(job)
    assert len(json.loads(path.read_text())) == len(EDGE_ROWS)
    assert await read_rows(f"json:{path}") == EDGE_ROWS


async def test_what_is_appended_to_an_array_is_in_the_array(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    columns = EDGES[:1]
    path.write_text('[ {"id": 1},\n {"id": 2} ]')
    job: Job = job_for(columns, mode=Mode.APPEND)
    await put(f"json:{path}", job, [{"id": 3}], span(None, 1))
    await put(f"json:{path}", job, [], span(1, 2))
    await open_writer(f"json:{path}").finish(job)
    assert [row["id"] for row in json.loads(path.read_text())] == [1, 2, 3]
    job = job_for(columns, mode=Mode.REPLACE, dump=OTHER)
    await put(f"json:{path}", job, [], span(None, 1))
    await open_writer(f"json:{path}").finish(job)
    assert json.loads(path.read_text()) == []
