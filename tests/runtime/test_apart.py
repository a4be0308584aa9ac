"""Connectors that have their own process: they keep the contract, and whatever they do they do to that process."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog

from headgate.connectors.api import ForgettingSink, Letter, Outgoing, Progress, Source, Unreadable
from headgate.connectors.guard import Bound, Guard
from headgate.core.reach import Reach, rule_from_text
from headgate.errors import (
    BadRecords,
    BatchRefused,
    Cause,
    ConfigError,
    ConnectorError,
    EndOfStream,
    Fenced,
    HeadgateError,
    NotConnected,
    RetryLater,
)
from headgate.runtime.apart import process as apart_process
from headgate.runtime.apart import values
from headgate.runtime.apart.process import Process
from headgate.runtime.apart.remote import Prober, process_of, tell_move
from headgate.runtime.apart.sink import RemoteSink
from headgate.runtime.apart.source import RemoteSource
from headgate.runtime.apart.surroundings import Bucket
from headgate.runtime.streams.parts import Share, take
from headgate.testing.contract import ForgettingSinkContract, SourceInPartsContract, TransactionalSinkContract
from headgate.testing.factories import make_context, make_grant
from tests import lodger
from tests.descriptors import many_open
from tests.waiting import until

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="wardens look into /proc")


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        lodger.install(tmp_path / "installed", patch)
        yield
    lodger.forget_plugins()


def process(side: Any = "source", context: Any = None, memory_mb: int = 512, **options: Any) -> Process:
    return process_of(lodger.CONNECTOR, side, options, replace(context or make_context(), memory_mb=memory_mb))


def source(**options: Any) -> RemoteSource:
    return RemoteSource(process(**options))


# The contract.


class TestLodgerSource(SourceInPartsContract):
    """Each test has one process, and several sources in it."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture(autouse=True)
    async def _house(self, _installed: Any) -> AsyncIterator[None]:
        self.process = process(count=25, batch=5, parts=3)
        self.process.join()
        yield
        self.process.end()

    def make_part(self, part: str) -> Source:
        return RemoteSource(self.process, part)

    def expected_parts(self) -> dict[str, list[Any]]:
        return {f"p{part}": [{"id": number, "part": f"p{part}"} for number in range(25)] for part in range(3)}


class TestLodgerSink(ForgettingSinkContract, TransactionalSinkContract):
    @pytest.fixture(autouse=True)
    async def _house(self, _installed: Any, tmp_path: Path) -> AsyncIterator[None]:
        self.folder = tmp_path
        self.process = process("sink", folder=str(tmp_path))
        self.process.join()
        yield
        self.process.end()

    def make_sink(self) -> ForgettingSink:
        return RemoteSink(self.process)

    def make_refused_records(self) -> list[dict[str, Any]]:
        return [*self.make_records(10, 5), {"id": -1, "text": "refused"}]

    async def read_back(self) -> list[dict[str, Any]]:
        return lodger.kept(self.folder)


async def test_a_node_may_have_thousands_of_files_open() -> None:
    with many_open():
        reading = source(count=3)
        await reading.open(None)
        assert len((await reading.read()).records) == 3
        await reading.close()


async def test_a_probe_is_asked_again_when_processes_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Prober(lambda: process(does="NotConnected", when="probe", once=None))
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", refused)
        with pytest.raises(NotConnected, match="no process can be started for the connector: Too many open files"):
            await probe()
    with pytest.raises(NotConnected) as told:
        await probe()
    assert "no process can be started" not in told.value.message
    probe._process.end()  # type: ignore[union-attr]


async def test_connectors_that_hang_when_they_are_imported_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = [process() for _ in range(apart_process.STARTING)]
    monkeypatch.setattr(apart_process, "SLOT_S", 0.1)
    monkeypatch.setattr(apart_process, "START_S", 600.0)
    with monkeypatch.context() as patch:
        patch.setattr(apart_process, "_launch", says_nothing)
        waiting = [asyncio.ensure_future(one.start()) for one in hanging]
        await until(lambda: all(one._transport is not None for one in hanging), "all have a process that says nothing")
    reading = source(count=3)
    await asyncio.wait_for(reading.open(None), 180)
    assert not any(one.done() for one in waiting)
    await reading.close()
    for one in hanging:
        one.end()
    await asyncio.gather(*waiting, return_exceptions=True)


def says_nothing(arguments: list[str], descriptors: list[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], pass_fds=descriptors, start_new_session=True)


def refused(*kinds: Any) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


async def test_all_that_a_batch_knows_goes_both_ways(tmp_path: Path) -> None:
    reading = source(count=3)
    await reading.open(None)
    batch = await reading.read()
    assert (batch.meta, batch.size_bytes, batch.event_time_s) == ([{"n": 0}, {"n": 1}, {"n": 2}], 30, 1.5)
    assert batch.place is not None
    assert batch.place(2) == "number 2"
    assert (await reading.backlog()).records == 0  # type: ignore[union-attr]
    with pytest.raises(EndOfStream, match="all was counted"):
        await reading.read()
    await reading.close()

    house = process("sink", folder=str(tmp_path))
    sink = RemoteSink(house)
    trust, was_ready = iter([30.0, 0.0]), []

    def trust_left_s() -> float:
        was_ready.append(house._transport is not None)
        return next(trust, 30.0)

    await sink.open(make_grant(trust_left_s=trust_left_s))
    assert was_ready == [True], "what is left is asked when it can be used: a start takes seconds"
    letter = Letter(UUID(int=1), b"sealed", b"key", remains=b"gone")
    outgoing = Outgoing(
        [{"id": 1}, {"id": 2}],
        Progress(1, 2, {"a": [1, None]}),
        ("id",),
        letters=[letter],
        supersedes=lambda record: b"k%d" % record["id"],
        places=lambda index: f"place {index}",
    )
    with pytest.raises(NotConnected, match="no trust"):  # What was left when it was sent.
        await sink.write(outgoing)
    await sink.write(outgoing)
    assert [(one["place"], one["key"]) for one in lodger.kept(tmp_path)] == [("place 0", "azE="), ("place 1", "azI=")]
    assert await sink.outcomes() == {letter.id: "open"}
    assert await sink.letters([letter.id]) == [letter]
    assert await sink.key_kinds(["id"]) == ["integer"]
    await sink.rehearse(replace(outgoing, records=[{"id": 9}], places=None, supersedes=None))
    assert len(lodger.kept(tmp_path)) == 2
    with pytest.raises(BadRecords) as told:
        await sink.write(replace(outgoing, records=[{"id": 3}, {"id": lodger.NESTED}, {"id": "\udcff"}]))
    assert [(one.index, one.reason) for one in told.value.bad] == [(1, values.UNSENDABLE), (2, values.UNSENDABLE)]
    await sink.close()


@pytest.mark.parametrize(
    ("does", "expected"),
    [
        ("NotConnected", NotConnected("away", hint="wait")),
        ("RetryLater", RetryLater("patience", after_s=0.25)),
        ("Fenced", Fenced("another")),
        ("BatchRefused", BatchRefused("one of them")),
        ("AUTH", ConnectorError("no", cause=Cause.AUTH, hint="a password")),
        ("ConfigError", ConfigError("folder: is missing", hint="name one")),
        ("ValueError", ConnectorError("ValueError: a bug\\udcff")),
        ("OSError", ConnectorError("ConnectionResetError: reset by peer", cause=Cause.NETWORK)),
        ("leave", ConnectorError("SystemExit: 4")),
        ("leap", ConnectorError("the connector's process needed more than 512 MB")),
    ],
)
async def test_an_error_is_the_same_on_the_other_side(does: str, expected: HeadgateError, tmp_path: Path) -> None:
    sink = RemoteSink(process("sink", does=does, when="check", folder=str(tmp_path)))
    with pytest.raises(type(expected)) as told:
        await sink.check()
    await sink.close()
    assert type(told.value) is type(expected)
    assert told.value.message == expected.message
    assert getattr(told.value, "cause", None) == getattr(expected, "cause", None)
    assert getattr(told.value, "after_s", None) == getattr(expected, "after_s", None)
    if does != "leap":
        assert told.value.hint == expected.hint


async def test_records_that_are_bad_are_named_and_must_be_there(tmp_path: Path) -> None:
    batch = Outgoing([{"id": 1}, {"id": 2}, {"id": 3}], Progress(commits=1))
    for does, records in (("BadRecords", 3), ("NoSuchRecords", 0)):
        sink = RemoteSink(process("sink", does=does, when="write", folder=str(tmp_path)))
        await sink.open(make_grant(epoch=1 if records else 2))
        with pytest.raises(ConnectorError) as told:
            await sink.write(batch)
        await sink.close()
        if records:
            assert isinstance(told.value, BadRecords)
            assert [(one.index, one.field, one.reason) for one in told.value.bad] == [
                (1, "id", "is odd"),
                (2, None, "is even"),
            ]
        else:
            assert "said what nobody understands" in told.value.message


# What it does to its own process.


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("exit", "exit code 3"),
        ("crash", "signal 11, a segmentation fault"),
        ("hog", "needed more than 128 MB"),
        ("garbage", "said what nobody understands"),
        ("lie", "said what nobody understands"),
        ("flood", "said what nobody understands"),
    ],
)
async def test_its_end_is_an_error_that_says_how(does: str, said: str) -> None:
    reading = source(does=does, memory_mb=128)
    await reading.open(None)
    with pytest.raises(ConnectorError, match=said) as told:
        await reading.read()
    assert told.value.cause is Cause.BUG
    with pytest.raises(ConnectorError, match=said):
        await reading.ack(1)
    await reading.close()


@pytest.mark.parametrize("does", ["block check", "block parts", "block open", "block read", "block ack", "block close"])
async def test_one_that_hangs_is_left_at_once_and_killed_when_it_is_closed(does: str) -> None:
    await _hangs(*does.split())


@pytest.mark.parametrize("method", ["read", "backlog", "mark", "close"])
async def test_one_that_does_not_let_itself_be_cancelled_is_killed_when_it_is_closed(method: str) -> None:
    await _hangs("ignore", method)


async def _hangs(does: str, method: str) -> None:
    reading = source(does=does, when=method)
    await (reading.check() if method == "open" else reading.open(None))
    if method != "close":
        args = [1] if method in ("open", "ack") else []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await getattr(reading, method)(*args)
    await asyncio.wait_for(reading.close(), 60)
    await until(lambda: not _wardens(), "it is gone")


async def test_what_it_has_started_ends_with_it(tmp_path: Path) -> None:
    reading = source(does="fork", folder=str(tmp_path), count=3, follows=True)
    await reading.open(None)
    await reading.read()
    left = int(await until(lambda: (tmp_path / "left").exists() and (tmp_path / "left").read_text()))
    os.kill(left, 0)
    await reading.close()
    await until(lambda: not Path(f"/proc/{left}").exists(), "what it left is gone")


async def test_it_knows_its_options_and_nothing_of_the_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADGATE_MASTER_KEY", "never")
    reading = source(does="environment", when="check", token="its own")
    with pytest.raises(ConnectorError, match=r"\[\] its own"):
        await reading.check()
    await reading.close()


async def test_what_python_opens_and_reaches_is_judged(tmp_path: Path) -> None:
    (tmp_path / "master.key").write_text("never")
    own = Guard(never=(os.path.realpath(tmp_path),))
    bound = Bound(Reach(addresses=(rule_from_text("10.0.0.0/8:*"),)))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        for does, guard in (("steal", own), ("connect", Guard((bound,)))):
            context = make_context(guard=guard)
            reading = source(context=context, does=does, when="check", folder=str(tmp_path), token=port)
            with pytest.raises(ConnectorError) as told:
                await reading.check()
            await reading.close()
            assert told.value.cause is Cause.CONFIG
            assert type(told.value).__name__ == "OutOfReach"


async def test_its_lines_and_events_arrive_and_cannot_pretend_to_be_others(tmp_path: Path) -> None:
    notes: list[Any] = []
    context = make_context(note=lambda type, **payload: notes.append((type, payload)))
    with structlog.testing.capture_logs() as lines:
        reading = source(context=context, parts=1)
        await reading.open(None)
        await reading.close()
    assert [(line["event"], line["at"], "stream_id" in line) for line in lines] == [("opened", "None", False)]
    assert notes == [("lodger_opened", {"part": ""})]


async def test_many_that_start_together_are_started_and_one_that_is_not_wanted_any_more_is_not(tmp_path: Path) -> None:
    several = [source(count=1, token="pid") for _ in range(6)]
    opening = [asyncio.ensure_future(one.open(None)) for one in several]
    await asyncio.sleep(0)
    opening[5].cancel()
    closing = asyncio.ensure_future(several[5].close())
    await asyncio.wait_for(asyncio.gather(*opening[:5]), 120)
    assert len({await one.mark() for one in several[:5]}) == 5
    await asyncio.gather(closing, *(one.close() for one in several[:5]))
    await until(lambda: not _wardens(), "all are gone")


def _wardens() -> list[int]:
    return lodger.wardens(os.getpid())


async def test_parts_of_one_stream_share_a_process() -> None:
    shared: Process | None = None

    def build(part: str) -> Source:
        nonlocal shared
        if shared is None or shared.is_over:
            shared = process(count=5, parts=3)
        return RemoteSource(shared, part)

    merged = await take(build, Share())
    await merged.open(None)
    found = [record for _ in range(3) for record in (await merged.read()).records]
    assert sorted({record["part"] for record in found}) == ["p0", "p1", "p2"]
    assert len(_wardens()) == 1
    await merged.close()
    await until(lambda: not _wardens(), "it is gone")


async def test_a_probe_and_a_move_are_asked_there() -> None:
    probe = Prober(lambda: process(does="NotConnected", when="probe", once=None))
    for _ in range(2):
        with pytest.raises(NotConnected, match="away"):
            await probe()
    assert probe._process is not None
    probe._process.end()
    assert await tell_move(lodger.CONNECTOR, 1, 2) == "from 1 to 2 in warden.py"


async def test_a_connector_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = RemoteSource(process_of(replace(lodger.CONNECTOR, name="gone"), "source", {}, make_context()))
    with pytest.raises(ConnectorError, match="connector 'gone' does not exist") as told:
        await gone.open(None)
    assert told.value.cause is Cause.CONFIG
    await gone.close()


async def test_a_warden_that_is_killed_takes_its_process_with_it() -> None:
    reading = source(count=1, follows=True, token="pid")
    await reading.open(None)
    await reading.read()
    pid = int((await reading.mark() or "").split()[1])
    waiting = asyncio.ensure_future(reading.read())
    [warden] = _wardens()[:1]
    os.kill(warden, signal.SIGKILL)
    with pytest.raises(ConnectorError, match="killed with the process that watched it"):
        await waiting
    await until(lambda: not Path(f"/proc/{pid}").exists())
    await reading.close()


# Values.


def test_values_are_the_same_after_the_way() -> None:
    plain = [{"a": [1, None, {"b": "ü"}], "c": 1.5, "d": b"\xff", "e": True, "n": number} for number in range(1000)]
    away = timezone(timedelta(hours=5))
    moments = [datetime(2026, 1, 2, 3, 4, 5, 678901, tz) for tz in (UTC, away, None)]
    for moment in moments:
        [data] = values.in_slices([{"at": moment, "list": [moment]}])
        [record] = values.from_slice(data)[0]
        assert record == {"at": moment, "list": [moment]}
        assert record["at"].isoformat() == moment.isoformat()
    odd = [lodger.ODD, {"at": moments}, {"u": UUID(int=5), 1: "key"}, Unreadable(b"x", "bad")]
    for records in (plain, odd, [*plain, *odd]):
        found = [one for data in values.in_slices(records) for one in values.from_slice(data)[0]]
        assert found == records
    assert len(list(values.in_slices([{"text": "x" * 100_000}] * 100))) > 10
    with pytest.raises(values.UnsendableError):
        list(values.in_slices([{"a": lodger.NESTED}]))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x92\x80\xc0", b"\x92\x90\x91\x01", b"\xc7\x01\x63x", b"\x90" * 3_000_000]
)
def test_a_slice_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="slice"):
        values.from_slice(data)


def test_a_bucket_fills_up_again() -> None:
    now = [0.0]
    bucket = Bucket(2, 1.0, lambda: now[0])
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    now[0] = 1.5
    assert [bucket.take() for _ in range(2)] == [True, False]
