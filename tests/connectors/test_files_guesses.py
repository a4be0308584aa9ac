"""CSV columns whose types nobody tells: what they are taken for, and what of that is held to."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.connectors.api.bulk import PLAIN, Language, StorageError, Table
from headgate.connectors.plugins import open_reader
from headgate.core.chunks import Range


async def described(path: Path, options: str = "") -> Table:
    return await open_reader(f"csv:{path}{options}").describe(path.stem)


async def read(path: Path, table: Table) -> bytes:
    reader = open_reader(f"csv:{path}")
    top = await reader.top(table)
    assert top is not None
    return b"".join([piece.data async for piece in reader.query(table, Range(None, top), Language.CSV, PLAIN)])


@pytest.mark.parametrize(("values", "type"), [
    (["1", "-20", "0", "", "999999999999999999"], "int64"),
    (["1", "1.50", "-0.5", "12345678901234567890"], "numeric"),
    (["2024-02-29", "1999-12-31"], "date"),
    (["2024-02-29 12:00:00", "2024-02-29T12:00:00.123456"], "timestamp"),
    (["0a0b0c0d-0000-4000-8000-000000000000"], "uuid"),
    (["007", "1"], "text"),
    (["+1"], "text"),
    (["1e5"], "text"),
    ([" 5"], "text"),
    (["-0"], "text"),
    (["-0.0"], "text"),
    (["1,5"], "text"),
    (["2024-02-30"], "text"),
    (["2024-02-29 12:00:00+01:00"], "text"),
    (["0A0B0C0D-0000-4000-8000-000000000000"], "text"),
    (["true", "false"], "text"),
    (['""', "1"], "text"),
    (["", ""], "text"),
])  # fmt: skip
async def test_a_column_is_what_all_of_its_values_are_written_as(tmp_path: Path, values: list[str], type: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(
        "k,v\n" + "".join(f"{value if ',' not in value else chr(34) + value + chr(34)},x\n" for value in values)
    )
    found = await described(file)
    assert [str(column.type) for column in found.columns] == [type, "text"]
    assert found.sampled == (type != "text")
    assert await read(file, found) == file.read_bytes().partition(b"\n")[2], "not a byte is changed"


async def test_a_later_value_that_is_written_otherwise_is_refused_with_its_line_and_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "t.csv"
    file.write_text('k,v\n1,"two\nlines"\n2,b\n007,c\n')
    found = await described(file, "?sample=2")
    assert [str(column.type) for column in found.columns] == ["int64", "text"]
    with pytest.raises(StorageError, match=r"t\.csv, line 5: column 'k' is int64 in the first records, and not") as bad:
        await read(file, found)
    assert bad.value.hint == "--column k=text"
    assert "007" not in str(bad.value)


async def test_no_sample_leaves_every_column_as_text(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("k\n1\n")
    found = await described(file, "?sample=0")
    assert [str(column.type) for column in found.columns] == ["text"]
    assert not found.sampled


async def test_records_that_cannot_be_read_are_text_until_they_are_copied(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("k,v\n1,2,3\n")
    found = await described(file)
    assert [str(column.type) for column in found.columns] == ["text", "text"]
    with pytest.raises(StorageError, match="3 fields for 2 columns"):
        await read(file, found)
