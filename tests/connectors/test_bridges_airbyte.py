"""Sources of Airbyte as sources of ours: states by stream and global, what a spec says, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from headgate.connectors import plugins
from headgate.connectors.api import Batch, Position, Source
from headgate.connectors.bridges import gathered, installed, messages, spec
from headgate.connectors.bridges.gathered import Gathered
from headgate.connectors.bridges.installed import Home
from headgate.connectors.bridges.options import AirbyteOptions
from headgate.connectors.guard import OPEN, Bound, Guard, OutOfReach
from headgate.core.reach import Reach
from headgate.datasources.prepared import check
from headgate.datasources.references import Unread
from headgate.errors import Cause, ConnectorError, EndOfStream
from headgate.store.datasources import Content
from headgate.testing.contract import SourceContract
from headgate.testing.contract.patience import soon
from headgate.testing.factories import make_context
from tests.connectors.bridge_airbyte import MODES, SPEC
from tests.connectors.bridge_home import HERE, put

COUNT = 23
USER = {"type": "user", "user": "ada"}


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    before = installed.present_home()
    made = Home.use(tmp_path_factory.mktemp("home"))
    put(made, "airbyte", "source-test", HERE / "bridge_airbyte.py", spec=SPEC)
    yield made
    installed._home = before


def make_source(guard: Guard = OPEN, /, **given: Any) -> Any:
    options = {"streams": ["orders"], "secrets": {}, **given.pop("options", {})}
    config = {"count": COUNT, "credentials": USER, **given}
    record = {"record": config.pop("record")} if "record" in config else {}
    made = AirbyteOptions(source="source-test", config=config, once=True, every="0.1s", **options)
    made = made.model_copy(update={"tuning": record})
    return plugins.get("airbyte").source.build(made, make_context(guard=guard))  # type: ignore[union-attr]


@asynccontextmanager
async def opened(source: Any, position: Position = None) -> Any:
    try:
        await source.open(position)
        yield source
    finally:
        await source.close()


async def read_all(source: Any, position: Position = None) -> list[Batch]:
    batches = []
    async with opened(source, position):
        with suppress(EndOfStream):
            while True:
                batches.append(await soon(source.read()))
    return batches


def records(batches: list[Batch]) -> list[Any]:
    return [record for batch in batches for record in batch.records]


class TestAirbyteSource(SourceContract):
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gathered, "ENOUGH", 10)

    def make_source(self) -> Source:
        return make_source()  # type: ignore[no-any-return]

    def expected(self) -> list[Any]:
        return [{"id": id, "text": f"orders {id}"} for id in range(COUNT)]


@pytest.mark.parametrize("mode", ["stream", "global", "legacy"])
async def test_it_goes_on_from_states_of_every_kind(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered, "ENOUGH", 10)
    first, *_ = await read_all(make_source(mode=mode))
    handled = len(first.records)
    assert handled in (5, 10)
    rest = await read_all(make_source(mode=mode), first.position)
    assert [record["id"] for record in records(rest)] == list(range(handled, COUNT))


async def test_streams_keep_their_states_and_types_come_with_them() -> None:
    given = {"at": "2024-05-01T12:00:00", "big": "12345678901234567890.5"}
    batches = await read_all(make_source(count=2, record=given, options={"streams": None}))
    found = records(batches)
    assert found[0] == {"id": 0, "text": "orders 0", "at": datetime(2024, 5, 1, 12), "big": Decimal(given["big"])}
    assert len(found) == 4
    meta = [one for batch in batches for one in batch.meta or []]
    assert meta[0] == {"stream": "orders", "key": ["id"], "emitted_at": 1714564800.0}
    assert {one["stream"] for one in meta} == {"orders", "users"}
    states = batches[-1].position["state"]
    assert set(states) == {"stream /orders", "stream /users"}
    assert "sourceStats" not in repr(states)
    # What has no cursor is read in full again, what has one goes on.
    again = await read_all(make_source(count=2, options={"streams": None}), batches[-1].position)
    assert [record["text"] for record in records(again)] == ["users 0", "users 1"]


@pytest.mark.parametrize("declares", [True, False])
async def test_streams_of_one_name_in_two_namespaces_are_two_streams(declares: bool) -> None:
    source = make_source(options={"streams": None})._dialect
    await source.program(None)
    name, into = "users" if declares else "undeclared", Gathered()
    for namespace in ("a", "b"):
        record = {"stream": name, "namespace": namespace, "data": {"id": 1}}
        source.take(msgspec.json.encode({"type": "RECORD", "record": record}), into, None)
    batch = into.rest()
    assert batch is not None
    key = next(one.key for one in source.streams if one.name == name)
    assert batch.meta == [{"stream": name, "key": [*key], "namespace": one} for one in ("a", "b")]
    assert {one.whole_name for one in source.streams} >= {("a", name), ("b", name)}


@pytest.mark.parametrize(("mode", "cause"), [("auth", Cause.AUTH), ("transient", Cause.NETWORK)])
async def test_what_a_source_says_of_its_failure_counts(mode: str, cause: Cause) -> None:
    found: list[Batch] = []
    async with opened(make_source(mode=mode)) as source:
        with pytest.raises(ConnectorError, match=r"source-test fails: (401|away)") as caught:
            while True:
                found.append(await soon(source.read()))
    assert caught.value.cause is cause
    assert len(records(found)) == COUNT


@pytest.mark.parametrize(
    ("mode", "words", "cause"),
    [
        ("broken", "fails with stream 'orders': 404 Client Error", Cause.CONFIG),
        ("quiet", "could not read stream 'orders' to its end", Cause.BUG),
    ],
)
async def test_a_stream_that_fails_fails_the_run_after_the_others_were_read(
    mode: str, words: str, cause: Cause
) -> None:
    found: list[Batch] = []
    async with opened(make_source(mode=mode, options={"streams": None})) as source:
        with pytest.raises(ConnectorError, match=words) as caught:
            while True:
                found.append(await soon(source.read()))
    assert caught.value.cause is cause
    assert {record["text"] for record in records(found)} >= {f"users {id}" for id in range(COUNT)}
    assert set(found[-1].position["state"]) == {"stream /orders", "stream /users"}


async def test_a_large_catalog_lets_others_have_their_turns() -> None:
    whole = {"version": 1, "streams": [{"name": f"s{id}", "columns": ["x" * 90] * 1000} for id in range(20)]}
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    text = await messages.encoded_catalog(whole)
    assert await messages.catalog_in(text) == whole
    counting.cancel()
    assert turns > 20 + len(text) // (2 * messages.TURN_BYTES)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"streams": {}}', b'{"streams": [' + b"[" * 9000, b"x" * 10**6])
async def test_what_is_no_catalog_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        await messages.catalog_in(text)


async def test_one_stream_that_would_hold_others_up_is_refused() -> None:
    with pytest.raises(ValueError, match="takes too long"):
        await messages.catalog_in(b'{"streams": [{"columns": [' + b"[]," * 200_000 + b"0]}]}")


async def test_a_check_asks_the_source_and_repeats_no_secret() -> None:
    await make_source().check()
    with pytest.raises(ConnectorError, match="Invalid API key \\*\\*\\*") as caught:
        await make_source(options={"secrets": {"password": "wrong"}}).check()
    assert caught.value.cause is Cause.AUTH
    with pytest.raises(ConnectorError, match="has no stream 'order'"):
        await read_all(make_source(options={"streams": ["order"]}))
    with pytest.raises(ConnectorError, match="cannot read 'users' by what is new"):
        await read_all(make_source(options={"streams": [{"name": "users", "replication": "incremental"}]}))


# Specs.


def problems(**source: Any) -> dict[str, str]:
    """Where something is wrong with a document, and what."""
    document = {"type": "airbyte", "source": "source-test", **source}
    found = check(Content(document, None, {"type": "blackhole"}, {}, [], ""), {"key": "s3cret", "hidden": Unread()})
    return {problem.path: problem.message for problem in found.problems}


def test_a_document_is_checked_with_the_spec() -> None:
    good = {"count": 3, "credentials": USER}
    assert problems(config=good) == {}
    assert (
        problems(config={"count": 3, "credentials": {"type": "key"}}, secrets={"credentials.key": {"$secret": "key"}})
        == {}
    )
    assert problems(config={"count": 0, "mode": "streams", "credentials": USER}) == {
        "source.config.count": "must be at least 1",
        "source.config.mode": f"must be one of {', '.join(MODES)}; did you mean stream?",
    }
    assert problems(config={"count": "3", "cont": 4}) == {
        "source.config.credentials": "is missing",
        "source.config.count": "must be a whole number",
        "source.config.cont": "is nothing that the connector knows; did you mean count?",
    }
    assert problems(config={"count": 3, "credentials": {"type": "user"}}) == {
        "source.config.credentials.user": "is missing"
    }
    assert problems(config=good, tuning={"count": 0}) == {"source.tuning.count": "must be at least 1"}
    assert list(problems(config=good, source="source-tset")) == ["source.source"]


def test_a_spec_of_somebody_else_is_not_looked_at_for_long() -> None:
    endless = {"anyOf": [{"$ref": "#/$defs/endless"}] * 4, "required": ["x"]}
    assert spec.problems({"$ref": "#/$defs/endless", "$defs": {"endless": endless}}, {"a": 1})
    slow = {"properties": {"a": {"pattern": "^([a-z]+)+$"}, "b": {"pattern": "^[a-z]+$"}}}
    assert spec.problems(slow, {"a": "a" * 100 + "1", "b": "B"}) == [(("b",), "does not match ^[a-z]+$")]
    many = spec.problems({"properties": {f"name{n}": {} for n in range(100)}}, {f"nome{n}": 1 for n in range(5000)})
    assert len(many) == spec.MOST_HINTS


def test_what_should_be_a_secret_is_not_written_out() -> None:
    written = problems(config={"count": 3, "credentials": {"type": "key", "key": "abc"}, "password": "hunter2"})
    assert set(written) == {"source.config.credentials.key", "source.config.password"}
    assert "secrets: {password: {$secret: NAME}}" in written["source.config.password"]
    assert "hunter2" not in repr(written)
    assert problems(config={"count": {"$secret": "key"}, "credentials": USER}).keys() >= {"source.config.count"}
    unread = problems(
        config={"count": 3, "credentials": {"type": "key"}}, secrets={"credentials.key": {"$secret": "hidden"}}
    )
    assert unread == {}
    assert spec.written_out(None, {"user": "ada", "auth": {"api_key": "abc", "key": 1}}) == [("auth", "api_key")]
    assert list(problems(config={"count": 3, "credentials": USER}, secrets={"count.x": {"$secret": "key"}})) == [
        "source.secrets"
    ]


@pytest.mark.parametrize("modules", [None, ("bridges.airbyte.source_test",)])
async def test_a_node_that_bounds_addresses_runs_no_program_unless_it_names_it(modules: tuple[str, ...] | None) -> None:
    guard = Guard((Bound(Reach(addresses=(), modules=modules), is_nodes=True),))
    if modules is None:
        with pytest.raises(OutOfReach, match="cannot be held to") as caught:
            make_source(guard)
        assert "HEADGATE_MODULES=bridges.airbyte.source_test" in caught.value.hint
    else:
        await make_source(guard).close()
    operator = Guard((Bound(Reach(addresses=(), modules=())),))
    (place,) = plugins.get("airbyte").source.reaches(make_source()._options)  # type: ignore[union-attr]
    assert operator.problem(place) is not None
