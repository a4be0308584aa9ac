"""JSON Lines: exact positions while reading, whole lines while writing, whatever happens to the files."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headgate.connectors.api import Batch, Outgoing, Position, Progress, Unreadable
from headgate.connectors.files.options import FilesSinkOptions, FilesSourceOptions
from headgate.connectors.files.sink import FilesSink
from headgate.connectors.files.source import FilesSource
from headgate.errors import BadRecords, Cause, ConnectorError, EndOfStream, Fenced, NotConnected
from headgate.testing.contract import SinkContract, SourceContract
from headgate.testing.factories import make_context, make_grant


def make_source(path: Path | str, **options: Any) -> FilesSource:
    return FilesSource(FilesSourceOptions(path=str(path), poll_s=0.001, **options), make_context())


async def open_source(path: Path | str, position: Position = None, **options: Any) -> FilesSource:
    source = make_source(path, **options)
    await source.open(position)
    return source


def make_sink(path: Path | str, **options: Any) -> FilesSink:
    return FilesSink(FilesSinkOptions(path=str(path), **options), make_context())


async def open_sink(path: Path | str, **options: Any) -> FilesSink:
    sink = make_sink(path, **options)
    await sink.open(make_grant())
    return sink


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def ids(batch: Batch) -> list[int]:
    return [record["id"] for record in batch.records]


def outgoing(*records: dict[str, Any]) -> Outgoing:
    return Outgoing(list(records), Progress())


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A disk that is full after so many bytes of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestFilesSource(SourceContract):
    """Three files, one of them empty, one without its last line feed; lines of several lengths, and blank ones."""

    options: ClassVar[dict[str, Any]] = {"batch": 4}

    @pytest.fixture(autouse=True)
    def data(self, tmp_path: Path) -> None:
        self.path = tmp_path / "*.jsonl"
        lines = [json.dumps(record) for record in self.expected()]
        (tmp_path / "1.jsonl").write_text("\n".join(lines[:17]) + "\n\n  \n")
        (tmp_path / "2.jsonl").write_text("")
        (tmp_path / "3.jsonl").write_text("\n\n" + "\r\n".join(lines[17:]))

    def make_source(self) -> FilesSource:
        return make_source(self.path, **self.options)

    def expected(self) -> list[Any]:
        return [{"id": i, "text": "x" * (i * 37 % 300)} for i in range(40)]


class TestFilesBySizeSource(TestFilesSource):
    """The same, where the batches are bounded by their bytes, and some lines are longer than that."""

    options: ClassVar[dict[str, Any]] = {"batch_bytes": 100, "max_line_bytes": 1000}


class TestFilesFollowingSource(TestFilesSource):
    """The same while following: the last line has its line feed, and there is no end."""

    options: ClassVar[dict[str, Any]] = {"batch": 4, "follow": True}
    ends = False

    @pytest.fixture(autouse=True)
    def end_of_line(self, data: None) -> None:
        append(self.path.parent / "3.jsonl", "\n")


class TestFilesSink(SinkContract):
    """Into a file that is not there at first."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "out.jsonl"

    def make_sink(self) -> FilesSink:
        return make_sink(self.path)

    async def read_back(self) -> list[dict[str, Any]] | None:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


# Reading.


async def test_a_batch_tells_the_mapping_which_file_it_is_from(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}\n')
    batch = await (await open_source(path)).read()
    assert batch.meta == [{"file": str(path)}] * 2
    assert batch.size_bytes == path.stat().st_size


async def test_lines_that_are_appended_after_the_end_are_read_by_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}')
    batch = await (await open_source(path)).read()
    append(path, '\n{"id": 2}\n')
    assert ids(await (await open_source(path, batch.position)).read()) == [2]


async def test_a_line_is_not_read_while_it_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"id"')
    source = await open_source(path, follow=True)
    assert ids(await source.read()) == [1]
    reading = asyncio.ensure_future(source.read())
    append(path, ": 2")
    done, _ = await asyncio.wait([reading], timeout=0.02)
    assert not done
    append(path, "}\n")
    assert ids(await reading) == [2]


async def test_following_goes_on_with_files_that_appear_later(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"id": 1}\n')
    source = await open_source(tmp_path / "*.jsonl", follow=True)
    assert ids(await source.read()) == [1]
    reading = asyncio.ensure_future(source.read())
    (tmp_path / "2.jsonl").write_text('{"id": 2}\n')
    assert ids(await reading) == [2]


async def test_a_last_line_without_line_feed_is_whole_once_a_later_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"id": 1}')
    (tmp_path / "2.jsonl").write_text('{"id": 2}\n')
    source = await open_source(tmp_path / "*.jsonl", follow=True)
    assert ids(await source.read()) == [1]
    assert ids(await source.read()) == [2]


@pytest.mark.parametrize("bad", ["{oops", "{} {}", '"\\ud8"', "[" * 100_000])
async def test_a_bad_line_comes_as_it_is_between_its_neighbours(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"id": 1}}\n\n{bad}\n{{"id": 2}}\n')
    batch = await (await open_source(path)).read()
    assert batch.records == [{"id": 1}, Unreadable(bad.encode(), "the line is not JSON"), {"id": 2}]
    assert batch.place is not None
    assert [batch.place(index) for index in (0, 1)] == [f"{path}, offset 0", f"{path}, offset 11"]


async def test_a_line_that_is_not_utf_8_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": "\xff"}\n')
    batch = await (await open_source(path)).read()
    assert batch.records == [Unreadable(b'{"id": "\xff"}', "the line is not JSON")]


async def test_a_torn_last_line_is_bad_when_the_file_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"id"')
    source = await open_source(path)
    assert (await source.read()).records == [{"id": 1}, Unreadable(b'{"id"', "the line is not JSON")]
    with pytest.raises(EndOfStream):
        await source.read()


async def test_a_line_may_be_as_long_as_allowed_and_a_longer_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps("x" * 98) + "\n" + json.dumps("x" * 99) + "\n" + '{"id": 3}\n')
    source = await open_source(path, max_line_bytes=100)
    assert (await source.read()).records == ["x" * 98]
    batch = await source.read()
    (long,) = batch.records
    assert isinstance(long, Unreadable)
    assert "more than 100 bytes" in long.reason
    assert long.body.startswith(b'"xxx')
    assert ids(await source.read()) == [3]
    again = await open_source(path, batch.position, max_line_bytes=100)
    assert ids(await again.read()) == [3]


async def test_a_line_that_is_too_long_is_waited_for_while_it_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n' + "x" * 200)
    source = await open_source(path, max_line_bytes=100, follow=True)
    assert ids(await source.read()) == [1]
    reading = asyncio.ensure_future(source.read())
    await asyncio.sleep(0.05)
    assert not reading.done()
    append(path, 'y\n{"id": 2}\n')
    assert isinstance((await reading).records[0], Unreadable)
    assert ids(await source.read()) == [2]


async def test_a_line_that_is_too_long_may_be_the_last(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x" * 200)
    source = await open_source(path, max_line_bytes=100)
    assert isinstance((await source.read()).records[0], Unreadable)
    with pytest.raises(EndOfStream):
        await source.read()


@pytest.mark.parametrize(
    "text",
    ["", '{"id": 1}\n', '{"id": 8}\n{"id": 9}\n', '{"id": 8}\n{"id": 9}\n{"id": 3}\n'],
    ids=["emptied", "shortened", "replaced", "replaced by a longer one"],
)
@pytest.mark.parametrize("is_running", [True, False])
async def test_a_file_that_is_not_the_one_that_was_read_stops_the_stream(
    tmp_path: Path, text: str, is_running: bool
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}\n')
    source = await open_source(path, follow=True)
    batch = await source.read()
    (tmp_path / "new").write_text(text)
    (tmp_path / "new").rename(path)
    with pytest.raises(ConnectorError, match="truncated or replaced") as caught:
        await (source.read() if is_running else make_source(path).open(batch.position))
    assert caught.value.cause is Cause.CONFIG
    assert "null" in caught.value.hint


async def test_a_copy_of_the_file_is_as_good_as_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}\n')
    batch = await (await open_source(path, batch=1)).read()
    text = path.read_text()
    path.unlink()
    path.write_text(text)
    assert ids(await (await open_source(path, batch.position)).read()) == [2]


async def test_an_operator_may_set_a_position_without_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}\n')
    assert ids(await (await open_source(path, {"file": str(path), "offset": 10})).read()) == [2]
    with pytest.raises(ConnectorError, match="truncated"):
        await open_source(path, {"file": str(path), "offset": 1000})


@pytest.mark.parametrize("position", [7, "a", {"offset": 1}, {"file": "a", "offset": -1}, {"file": "a", "line": 2}])
async def test_a_position_of_another_shape_is_a_mistake_of_configuration(tmp_path: Path, position: Any) -> None:
    with pytest.raises(ConnectorError, match="not a place in a file") as caught:
        await make_source(tmp_path / "a").open(position)
    assert caught.value.cause is Cause.CONFIG


async def test_a_file_that_is_gone_stops_the_stream(tmp_path: Path) -> None:
    for name in ("1.jsonl", "2.jsonl"):
        (tmp_path / name).write_text('{"id": 1}\n')
    batch = await (await open_source(tmp_path / "*.jsonl")).read()
    (tmp_path / "1.jsonl").unlink()
    with pytest.raises(ConnectorError, match=r"1\.jsonl: No such file") as caught:
        await make_source(tmp_path / "*.jsonl").open(batch.position)
    assert caught.value.cause is Cause.CONFIG


async def test_without_a_file_following_waits_and_reading_once_is_a_mistake(tmp_path: Path) -> None:
    for call in (lambda source: source.check(), lambda source: source.open(None)):
        with pytest.raises(NotConnected):
            await call(make_source(tmp_path / "*.jsonl", follow=True))
        with pytest.raises(ConnectorError) as caught:
            await call(make_source(tmp_path / "*.jsonl"))
        assert caught.value.cause is Cause.CONFIG


async def test_a_name_with_the_signs_of_a_glob_is_a_name_if_such_a_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a[1].jsonl"
    path.write_text('{"id": 1}\n')
    assert ids(await (await open_source(path)).read()) == [1]


# Writing.


@pytest.mark.parametrize(
    "before", ['{"id":1}\n{"id":', '{"id":', '{"id":1}\n{"id":2}', "not JSON at all", '{"id":1}\n', ""]
)
async def test_what_somebody_else_wrote_stays_whatever_it_is(tmp_path: Path, before: str) -> None:
    """Its last line gets an end, so that no two records are glued together."""
    path = tmp_path / "out.jsonl"
    path.write_text(before)
    kept = before if not before or before.endswith("\n") else before + "\n"
    sink = await open_sink(path)
    assert path.read_text() == kept
    append(path, "grown by another")
    await sink.write(outgoing({"id": 3}))
    assert path.read_text() == kept + 'grown by another\n{"id":3}\n'
    assert os.listdir(tmp_path) == ["out.jsonl"]


class Killed(BaseException):
    """The process ends in the middle of a write."""


async def killed_while_writing(monkeypatch: pytest.MonkeyPatch, path: Path, bytes_written: int) -> None:
    """Two records, of which this many bytes reach the file."""
    sink, write = await open_sink(path), os.write

    def end(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:bytes_written])
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", end)
        with pytest.raises(Killed):
            await asyncio.to_thread(sink._append, b'{"id":1}\n{"id":2}\n')


@pytest.mark.parametrize(
    ("bytes_written", "after"),
    [(0, ""), (5, ""), (8, '{"id":1}\n'), (9, '{"id":1}\n'), (12, '{"id":1}\n'), (17, '{"id":1}\n{"id":2}\n')],
)
async def test_half_a_line_of_a_sink_that_was_killed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_written: int, after: str
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("somebody else's\n")
    await killed_while_writing(monkeypatch, path, bytes_written)
    await open_sink(path)
    assert path.read_text() == "somebody else's\n" + after
    assert os.listdir(tmp_path) == ["out.jsonl"]


def replaced(path: Path) -> None:
    text = path.read_text()
    path.rename(path.with_name("old"))
    path.write_text(text)


def rewritten(path: Path) -> None:
    path.write_text(path.read_text().replace("id", "ID"))


def grown(path: Path) -> None:
    append(path, "a")


def forged(path: Path) -> None:
    journal = path.with_name(".out.jsonl.headgate")
    journal.write_text('{"forged": true}')


@pytest.mark.parametrize("change", [replaced, rewritten, grown, forged])
async def test_half_a_line_that_is_not_surely_its_own_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "out.jsonl"
    await killed_while_writing(monkeypatch, path, 12)
    change(path)
    before = path.read_text()
    await open_sink(path)
    assert path.read_text() == before + "\n"


async def test_a_journal_that_is_a_symlink_is_neither_followed_nor_removed(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "out.jsonl"
    other.write_text("precious")
    journal = tmp_path / ".out.jsonl.headgate"
    journal.symlink_to(other)
    sink = await open_sink(path)
    await sink.write(outgoing({"id": 1}))
    assert (other.read_text(), path.read_text(), journal.is_symlink()) == ("precious", '{"id":1}\n', True)


async def test_a_full_disk_is_tried_again_and_leaves_nothing_of_the_batch(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    sink = await open_sink(path)
    await sink.write(outgoing({"id": 1}))
    large = outgoing(*({"id": i, "text": "x" * 1000} for i in range(100)))
    with files_no_larger_than(50_000), pytest.raises(NotConnected):
        await sink.write(large)
    assert path.read_text() == '{"id":1}\n'
    await sink.write(large)
    assert len(path.read_text().splitlines()) == 101


async def test_a_batch_that_the_disk_does_not_confirm_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "out.jsonl"
    sink = await open_sink(path)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(NotConnected, match="Input/output"):
        await sink.write(outgoing({"id": 1}))
    assert path.read_text() == ""


async def test_the_disk_is_asked_to_confirm_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed: list[int] = []
    monkeypatch.setattr(os, "fsync", confirmed.append)
    await (await open_sink(tmp_path / "a", sync=False)).write(outgoing({"id": 1}))
    assert not confirmed
    await (await open_sink(tmp_path / "b")).write(outgoing({"id": 1}))
    assert confirmed


async def test_a_missing_folder_is_a_mistake_of_configuration_and_is_not_made(tmp_path: Path) -> None:
    sink = make_sink(tmp_path / "none" / "out.jsonl")
    for call in (sink.check(), sink.open(make_grant())):
        with pytest.raises(ConnectorError) as caught:
            await call
        assert caught.value.cause is Cause.CONFIG
        assert caught.value.hint == "make it first"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("path", [".", "/dev/null"])
async def test_only_a_regular_file_is_written(path: str) -> None:
    with pytest.raises(ConnectorError, match="not a regular file") as caught:
        await make_sink(path).open(make_grant())
    assert caught.value.cause is Cause.CONFIG


async def test_a_file_that_may_not_be_written_is_a_mistake_of_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make_sink(tmp_path / "out.jsonl")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # Root may write everything.
    for call in (sink.check(), sink.open(make_grant())):
        with pytest.raises(ConnectorError, match="may not be written") as caught:
            await call
        assert caught.value.cause is Cause.CONFIG


async def test_a_check_does_not_make_the_file(tmp_path: Path) -> None:
    await make_sink(tmp_path / "out.jsonl").check()
    assert not (tmp_path / "out.jsonl").exists()


async def test_a_record_that_cannot_be_json_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    sink = await open_sink(tmp_path / "out.jsonl")
    with pytest.raises(BadRecords) as caught:
        await sink.write(outgoing({"id": object()}, {"id": 1}, {"id": object()}))
    assert [bad.index for bad in caught.value.bad] == [0, 2]
    assert (tmp_path / "out.jsonl").read_text() == ""


async def test_two_streams_may_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    sinks = [await open_sink(path, sync=False) for _ in range(4)]
    batch = outgoing(*({"text": "x" * 1000} for _ in range(500)))
    await asyncio.gather(*(sink.write(batch) for sink in sinks for _ in range(5)))
    assert [json.loads(line) for line in path.read_text().splitlines()] == batch.records * 20


async def test_a_write_that_waited_until_its_trust_ended_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    trust_left_s = [10.0]
    sink = make_sink(path)
    await sink.open(make_grant(trust_left_s=lambda: trust_left_s[0]))
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writing = asyncio.ensure_future(sink.write(outgoing({"id": 1})))
        await asyncio.sleep(0)
        trust_left_s[0] = 0.0
    with pytest.raises(Fenced):
        await writing
    assert path.read_text() == ""


async def test_what_the_sink_wrote_the_source_reads(tmp_path: Path) -> None:
    path = tmp_path / "both.jsonl"
    await (await open_sink(path)).write(outgoing({"id": 1, "text": "line\nfeed"}, {"id": 2}))
    assert (await (await open_source(path)).read()).records == [{"id": 1, "text": "line\nfeed"}, {"id": 2}]
