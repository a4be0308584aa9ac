"""Standard output: one line per record, all of a batch before the write returns."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from uuid import UUID

import pytest

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.stdout import Stdout, StdoutOptions
from headgate.errors import BadRecords, Cause, NotConnected
from headgate.testing.contract import SinkContract
from headgate.testing.factories import make_context, make_grant


def redirect(monkeypatch: pytest.MonkeyPatch, file: IO[str]) -> None:
    """Give the sink this output; pytest sets the real one anew between a fixture and its test."""
    monkeypatch.setattr("headgate.connectors.stdout.sys", SimpleNamespace(stdout=file))


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IO[str]]:
    """Standard output, as a file."""
    with (tmp_path / "output").open("w") as file:
        redirect(monkeypatch, file)
        yield file


def text_of(output: IO[str]) -> str:
    return Path(output.name).read_text()


async def write(*records: dict[str, Any]) -> None:
    sink = Stdout(StdoutOptions(), make_context())
    await sink.open(make_grant())
    await sink.write(Outgoing(list(records), Progress()))
    await sink.close()


class TestStdoutSink(SinkContract):
    """Into a file."""

    @pytest.fixture(autouse=True)
    def place(self, output: IO[str]) -> None:
        self.output = output

    def make_sink(self) -> Stdout:
        return Stdout(StdoutOptions(), make_context())

    async def read_back(self) -> list[dict[str, Any]] | None:
        return [json.loads(line) for line in text_of(self.output).splitlines()]


async def test_values_that_json_lacks_become_text(output: IO[str]) -> None:
    await write(
        {
            "time": datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
            "price": Decimal("1.50"),
            "id": UUID(int=7),
            "raw": b"abc",
        }
    )
    assert json.loads(text_of(output)) == {
        "time": "2025-01-02T03:04:05Z",
        "price": "1.50",
        "id": "00000000-0000-0000-0000-000000000007",
        "raw": "YWJj",
    }


async def test_what_was_printed_before_comes_before(output: IO[str]) -> None:
    print("first", file=output)
    await write({"id": 1})
    assert text_of(output) == 'first\n{"id":1}\n'


async def test_a_record_that_cannot_be_json_is_named_and_nothing_is_written(output: IO[str]) -> None:
    with pytest.raises(BadRecords) as caught:
        await write({"id": object()}, {"id": 1}, {"id": object()})
    assert [bad.index for bad in caught.value.bad] == [0, 2]
    assert text_of(output) == ""


async def test_a_batch_larger_than_a_pipe_is_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as writer:
        redirect(monkeypatch, writer)
        received = asyncio.ensure_future(asyncio.to_thread(reader.read))
        await write(*({"text": "x" * 1000} for _ in range(1000)))
        writer.close()
        assert (await received).count(b"\n") == 1000


async def test_a_pipe_that_nobody_reads_any_more_is_not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as writer:
        redirect(monkeypatch, writer)
        with pytest.raises(NotConnected) as caught:
            await write({"id": 1})
    assert caught.value.cause is Cause.NETWORK


async def test_a_closed_output_is_not_connected(output: IO[str]) -> None:
    output.close()
    with pytest.raises(NotConnected):
        await Stdout(StdoutOptions(), make_context()).check()
    with pytest.raises(NotConnected):
        await write({"id": 1})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
async def test_a_full_disk_is_not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        redirect(monkeypatch, full)
        with pytest.raises(NotConnected, match="No space left"):
            await write({"id": 1})
