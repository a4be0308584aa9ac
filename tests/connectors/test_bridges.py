"""Bridges: what taps say becomes records with positions, and whatever they do, the node goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import structlog
import uvloop
from msgspec import structs
from pydantic import ValidationError

from headgate.connectors import plugins
from headgate.connectors.api import Batch, Position, Source, Unreadable
from headgate.connectors.bridges import child, gathered, installed, uses
from headgate.connectors.bridges.installed import Home, Installed
from headgate.connectors.bridges.options import DltOptions, SingerOptions
from headgate.connectors.bridges.singer import Speech
from headgate.connectors.bridges.typed import field_types
from headgate.errors import Cause, ConnectorError, EndOfStream
from headgate.testing.contract import SourceContract
from headgate.testing.contract.patience import soon
from headgate.testing.factories import make_context
from tests.connectors.bridge_home import HERE, home_with_taps, put
from tests.descriptors import many_open

COUNT = 23
RECORDS = [{"id": id, "text": f"orders {id}"} for id in range(COUNT)]


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    before = installed.present_home()
    yield home_with_taps(tmp_path_factory.mktemp("home"))
    installed._home = before


def make_source(config: dict[str, Any] | None = None, **options: Any) -> Any:
    made = SingerOptions(**{"tap": "tap-test", "config": config or {}, "once": True, "every": "0.1s", **options})
    return plugins.get("singer").source.build(made, make_context())  # type: ignore[union-attr]


@asynccontextmanager
async def opened(source: Any, position: Position = None) -> Any:
    try:
        await source.open(position)
        yield source
    finally:
        await source.close()


async def read_all(source: Any, position: Position = None) -> list[Batch]:
    """All batches of one run."""
    batches = []
    async with opened(source, position):
        with suppress(EndOfStream):
            while True:
                batches.append(await soon(source.read()))
    return batches


def ids(batches: list[Batch]) -> list[int]:
    return [record["id"] for batch in batches for record in batch.records]


class TestSingerSource(SourceContract):
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gathered, "ENOUGH", 5)

    def make_source(self) -> Source:
        return make_source({"count": COUNT}, discover=False)  # type: ignore[no-any-return]

    def expected(self) -> list[Any]:
        return RECORDS


# What a tap says.


async def test_a_node_may_have_thousands_of_files_open() -> None:
    with many_open():
        assert ids(await read_all(make_source({"count": 3}))) == [0, 1, 2]


async def test_values_have_the_types_of_the_schema_and_metadata_say_stream_and_key() -> None:
    given = {
        "at": "2024-05-01T12:00:00Z",
        "day": "2024-05-01T00:00:00",
        "price": 12345678901234567.89,
        "share": 0.5,
        "lines": [{"at": "2024-05-01 12:00:00"}, {"at": "never"}, 7],
        "else": 1.5,
    }
    (batch,) = await read_all(make_source({"count": 1, "record": given}))
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    assert batch.records == [
        {
            "id": 0,
            "at": noon,
            "day": date(2024, 5, 1),
            "price": Decimal("12345678901234568"),  # As the tap itself has written it.
            "share": 0.5,
            "lines": [{"at": noon}, {"at": "never"}, 7],
            "else": 1.5,
        }
    ]
    assert type(batch.records[0]["share"]) is float
    assert type(batch.records[0]["else"]) is float
    assert batch.meta == [{"stream": "orders", "key": ["id"]}]
    assert batch.position == {"state": {"orders": 0}}


def test_a_number_without_a_value_yet_gets_a_column_that_holds_every_number() -> None:
    """9007199254740993 is one, and no float is."""
    schema = {"properties": {"v": {"type": ["null", "number"]}, "n": {"type": "integer"}}}
    assert field_types(schema) == {"v": "decimal", "n": "int"}


def test_streams_are_listed_again_only_if_one_has_changed() -> None:
    """There may be tens of thousands, and each batch brings the list."""
    speech, into = Speech("tap-test"), gathered.Gathered()

    def say(**message: Any) -> None:
        speech.take(msgspec.json.encode(message), into, cast("Any", None))

    say(type="SCHEMA", stream="users", schema={}, key_properties=["id"])
    before = speech.streams
    say(type="RECORD", stream="users", record={"id": 1})
    assert speech.streams is before
    say(type="SCHEMA", stream="users", schema={}, key_properties=["id", "region"])
    assert [one.key for one in speech.streams] == [("id", "region")]
    assert [one.key for one in before] == [("id",)]


async def test_only_the_chosen_streams_are_read_and_a_missing_one_is_named() -> None:
    config = {"streams": ["orders", "users", "lines"], "count": 3}
    batches = await read_all(make_source(config, streams=["orders", {"name": "users", "replication": "full"}]))
    found = [
        (meta["stream"], record["id"])
        for batch in batches
        for meta, record in zip(batch.meta or [], batch.records, strict=True)
    ]
    assert found == [(stream, id) for stream in ("orders", "users") for id in range(3)]
    source = make_source(config, streams=["order"])
    with pytest.raises(ConnectorError, match="has no stream 'order'") as caught:
        await source.check()
    assert caught.value.cause is Cause.CONFIG
    assert caught.value.hint == "did you mean orders?"
    await source.close()


# States.


async def test_records_without_a_state_are_handed_on_with_the_position_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathered, "MOST", 10)
    config = {"count": 24, "state_every": 0, "last_state": False}
    batches = await read_all(make_source(config), {"state": {"orders": 2}})
    assert [len(batch.records) for batch in batches] == [10, 10, 1]
    assert [batch.position for batch in batches] == [{"state": {"orders": 2}}] * 3
    assert ids(batches) == list(range(3, 24))


async def test_what_follows_the_last_state_of_the_last_run_is_not_lost() -> None:
    batches = await read_all(make_source({"count": 7, "state_every": 5, "last_state": False}))
    assert ids(batches) == list(range(7))
    assert batches[-1].position == {"state": {"orders": 4}}


async def test_records_do_not_wait_long_for_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.connectors.bridges.running.HOLD_S", 0.2)
    config = {"state_every": 2, "fault_at": 2, "fault": "hang"}
    async with opened(make_source(config, discover=False)) as source:
        first, second = await soon(source.read()), await soon(source.read())
    found = ids([first, second])
    assert found == [0, 1, 2]
    assert second.position == {"state": {"orders": 1}}


async def test_a_tap_that_has_ended_starts_again_from_its_last_state() -> None:
    config = {"count": 4, "state_every": 3, "last_state": False}
    async with opened(make_source(config, once=False)) as source:
        batches = [await soon(source.read())]
        while len(ids(batches)) < 6:
            batches.append(await soon(source.read()))
    assert ids(batches) == [0, 1, 2, 3, 3, 3]  # Record 3 has no state, so each run says it again.
    assert {batch.position["state"]["orders"] for batch in batches} == {2}


async def test_the_next_run_is_of_the_version_that_is_installed_by_then(home: Home) -> None:
    old = put(home, "singer", "tap-old", HERE / "bridge_tap.py")
    config = {"count": 4, "state_every": 3, "last_state": False}
    async with opened(make_source(config, tap="tap-old", once=False)) as source:
        batches = [await soon(source.read())]
        home.environment(old.environment).rename(home.environment("newer"))  # Nothing is left of the one of before.
        home.save(structs.replace(old, environment="newer"))
        while len(ids(batches)) < 6:
            batches.append(await soon(source.read()))
    assert ids(batches) == [0, 1, 2, 3, 3, 3]


@pytest.mark.parametrize("position", [7, {"stat": 1}, {"state": 1, "more": 2}])
async def test_what_is_no_position_is_refused(position: Position) -> None:
    source = make_source()
    with pytest.raises(ConnectorError, match="none of a bridge"):
        await source.open(position)
    assert "no position" in plugins.get("singer").source.tell_move(None, position)  # type: ignore[union-attr, misc]


# What a tap does wrong.


async def test_lines_that_are_no_messages_are_logged_and_broken_records_become_letters() -> None:
    with structlog.testing.capture_logs() as logs:
        batches = await read_all(make_source({"count": 6, "fault_at": 2, "fault": "garbage"}))
    records = [record for batch in batches for record in batch.records]
    (broken,) = [record for record in records if isinstance(record, Unreadable)]
    assert broken.body == b'{"type": "RECORD", "stream": "orders", "record": {"id": 1'
    assert [record["id"] for record in records if record is not broken] == list(range(6))
    assert {"starting up, please wait", "[1, 2]"} <= {line.get("said") for line in logs}


async def test_a_line_that_is_too_long_is_one_letter_and_little_of_it_is_kept() -> None:
    source = make_source({"count": 6, "fault_at": 2, "fault": "huge"}, max_line_bytes=64 * 1024)
    records = [record for batch in await read_all(source) for record in batch.records]
    (broken,) = [record for record in records if isinstance(record, Unreadable)]
    assert len(broken.body) == 64 * 1024
    assert "at most 65,536 are taken" in broken.reason
    assert len(records) == 7


async def test_a_record_that_would_hold_others_up_is_a_letter() -> None:
    source = make_source({"count": 6, "fault_at": 2, "fault": "costly"}, discover=False)
    records = [record for batch in await read_all(source) for record in batch.records]
    (broken,) = [record for record in records if isinstance(record, Unreadable)]
    assert broken.reason == "the record takes too long to decode"
    assert len(records) == 7


async def test_a_line_that_makes_no_sense_is_a_letter_and_the_stream_goes_on() -> None:
    source = make_source({"count": 6, "fault_at": 2, "fault": "senseless"}, discover=False)
    records = [record for batch in await read_all(source) for record in batch.records]
    broken = [record for record in records if isinstance(record, Unreadable)]
    assert [record.reason for record in broken] == ["the line makes no sense, or is nested too deeply"] * 2
    assert [record["id"] for record in records if record not in broken] == list(range(6))


@pytest.mark.parametrize(
    ("fault", "words", "cause"),
    [
        ("crash", "requests.exceptions.HTTPError: 401 Client Error: Unauthorized", Cause.AUTH),
        ("crash", "psycopg2.OperationalError: could not connect to server: Connection refused", Cause.NETWORK),
        ("crash", "'start_date' is a required property", Cause.CONFIG),
        ("crash", "KeyError: 17", Cause.BUG),
        ("kill", "", Cause.NETWORK),
    ],
)
async def test_a_tap_that_fails_has_handed_on_what_has_a_state(fault: str, words: str, cause: Cause) -> None:
    config = {"fault_at": 12, "fault": fault, "last_words": words}
    batches = []
    async with opened(make_source(config, discover=False)) as source:
        with pytest.raises(ConnectorError, match=words or "signal 9") as caught:
            while True:
                batches.append(await soon(source.read()))
    assert caught.value.cause is cause
    assert ids(batches) == list(range(10))
    assert batches[-1].position == {"state": {"orders": 9}}


async def test_a_tap_that_does_not_find_its_way_in_says_so_without_the_password() -> None:
    source = make_source({}, secrets={"password": "wrong"})
    with pytest.raises(ConnectorError, match=r"authentication failed .* with \*\*\*$") as caught:
        await source.check()
    assert caught.value.cause is Cause.AUTH
    await source.close()


async def test_what_a_tap_says_is_bounded_and_shows_no_secret() -> None:
    config = {"count": 4, "fault_at": 1, "fault": "noise"}
    with structlog.testing.capture_logs() as logs:
        await read_all(make_source(config, secrets={"password": "s3cret-of-ada"}))
    assert 1 <= len([line for line in logs if "said" in line]) <= 40
    assert sum(line.get("size_bytes", 0) for line in logs) > 100_000
    assert "s3cret-of-ada" not in repr(logs)


async def test_a_tap_sees_its_own_files_and_nothing_of_the_node(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    monkeypatch.setenv("HEADGATE_MASTER_KEY", "AAAA")
    monkeypatch.setenv("PGPASSWORD", "hush")
    batches = await read_all(make_source({"count": 1, "fault_at": 0, "fault": "environment"}), {"state": {}})
    seen = next(record for batch in batches for record in batch.records if "names" in record)
    assert not {name for name in seen["names"] if name.startswith(("HEADGATE", "PG"))}
    assert seen["folder"] == "0o700"
    assert {"config": "0o600", "catalog": "0o600", "state": "0o600"}.items() <= seen["files"].items()
    assert not Path(seen["cwd"]).exists()
    assert list(home.runs.iterdir()) == []


async def test_a_tap_that_wants_too_much_memory_fails_alone() -> None:
    config = {"count": 4, "fault_at": 1, "fault": "memory"}
    async with opened(make_source(config, memory_mb=128, discover=False)) as source:
        with pytest.raises(ConnectorError, match="MemoryError"):
            while True:
                await soon(source.read())


@pytest.mark.parametrize("fault", ["stubborn", "stop"])
async def test_a_tap_that_hangs_is_ended_with_all_that_it_has_started(fault: str, home: Home) -> None:
    with structlog.testing.capture_logs() as logs:
        async with opened(make_source({"state_every": 1, "fault_at": 3, "fault": fault}, discover=False)) as source:
            while not (said := [line["said"] for line in logs if "pids" in line.get("said", "")]):
                with suppress(TimeoutError):
                    await asyncio.wait_for(source.read(), 0.2)
            pids = [int(word) for word in said[0].split()[1:]]
            assert all(map(_is_alive, pids))
    assert not any(map(_is_alive, pids))
    assert list(home.runs.iterdir()) == []


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_tap_waits_while_nobody_reads(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "AHEAD_BYTES", 1 << 20)

    async def read_a_little() -> None:
        async with opened(make_source({"count": 60_000, "state_every": 100}, discover=False)) as source:
            await soon(source.read())
            running = source._child
            while not running._is_paused:
                await asyncio.sleep(0.01)
            held = running._waiting_bytes
            await asyncio.sleep(0.3)
            assert running._waiting_bytes == held < child.AHEAD_BYTES + (1 << 20)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(read_a_little())


def test_a_test_of_a_draft_starts_no_tap() -> None:
    kind = plugins.get("singer").source
    assert kind is not None
    with pytest.raises(ConnectorError, match="does not run in a test"):
        kind.build(SingerOptions(tap="tap-test"), make_context(is_rehearsal=True))


@pytest.mark.parametrize(
    ("resource", "package"),
    [("os:system", "my-sources"), ("subprocess:run", "dlt"), ("dlt.reflection:anything", ""), ("my_other:rows", "dlt")],
)
def test_a_resource_of_dlt_is_of_the_package_that_an_admin_has_allowed(home: Home, resource: str, package: str) -> None:
    for name, module in (("my-sources", "my_sources"), ("dlt", "dlt")):
        home.save(Installed("dlt", name, "1.0", "of-dlt", "python", [], "3.11", 0.0, None, [module]))
    assert DltOptions(resource="dlt.sources.sql_database:sql_table").installed() is not None
    assert DltOptions(resource="my_sources.shop:rows", package="my-sources").installed() is not None
    with pytest.raises(ValidationError, match="is none of the modules of"):
        DltOptions(resource=resource, package=package)


def test_what_is_installed_is_what_was_written_to_its_end_and_is_known_by_its_own_name_first(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.folder.mkdir()
    for name in ("aaa", "tap-b"):
        home.save(Installed("singer", name, "1.0", f"of-{name}", "tap-b", [], "3.11", 0.0))
    torn = home.path_of("singer", "aaa").read_bytes()
    (home.folder / ".singer-torn.json").write_bytes(torn)  # A node was killed before it had its name.
    assert [one.name for one in home.all()] == ["aaa", "tap-b"]
    exact = home.find("singer", "tap-b")
    assert exact is not None
    assert exact.name == "tap-b"
    assert uses({"type": "singer", "tap": "TAP_B"}, exact)  # As it would be found.
    assert not uses({"type": "singer", "tap": "tap-c"}, exact)
