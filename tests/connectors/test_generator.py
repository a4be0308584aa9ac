"""The generator: the same records every time, at the pace that was asked for."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

import pytest
from pydantic import ValidationError

from headgate.connectors.api import identity_of
from headgate.connectors.generator import CONNECTOR, Generator, GeneratorOptions
from headgate.errors import Cause, ConnectorError, EndOfStream
from headgate.testing.contract import SourceContract, SourceInPartsContract
from headgate.testing.factories import make_context

KINDS = ["sequence", "int", "float", "bool", "word", "text", "name", "email", "uuid", "time", "now"]
EVERY_KIND: dict[str, Any] = {"count": 20, "batch": 3, "fields": {kind: kind for kind in KINDS} | {"any": ["a", "b"]}}


def make_generator(part: str = "", **options: Any) -> Generator:
    return Generator(GeneratorOptions(**options), make_context(now_s=lambda: 1_700_000_000.0, part=part))


async def records_of(position: int | None = None, **options: Any) -> list[Any]:
    """All records that follow the position."""
    generator = make_generator(**options)
    await generator.open(position)
    records: list[Any] = []
    try:
        while True:
            records += (await generator.read()).records
    except EndOfStream:
        return records


class PatientSelector(selectors.SelectSelector):
    """Does not wait: it moves the loop's clock to when the wait would have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.waits: list[float] = []

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self.waits.append(timeout)
            self.now_s += timeout
        return super().select(0)


class PatientLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time."""

    def __init__(self) -> None:
        self.selector = PatientSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now_s


@pytest.fixture
def patient() -> Any:
    loop = PatientLoop()
    yield loop
    loop.close()


class TestGeneratorSource(SourceContract):
    """The default order, in small batches."""

    def make_source(self) -> Generator:
        return make_generator(count=50, batch=7)

    def expected(self) -> list[Any]:
        return make_generator()._make(0, 50, 1_700_000_000.0)


class TestGeneratorOfFieldsSource(SourceContract):
    """Every kind at once."""

    def make_source(self) -> Generator:
        return make_generator(**EVERY_KIND)

    def expected(self) -> list[Any]:
        return make_generator(**EVERY_KIND)._make(0, 20, 1_700_000_000.0)


class TestGeneratorOfPartsSource(SourceInPartsContract):
    """The same records as without parts, each in one of them."""

    def make_part(self, part: str) -> Generator:
        return make_generator(part, parts=3, count=50, batch=4)

    def expected_parts(self) -> dict[str, list[Any]]:
        records = make_generator()._make(0, 50, 1_700_000_000.0)
        return {str(part): records[part::3] for part in range(3)}


class TestGeneratorOfPartsWithFieldsSource(SourceInPartsContract):
    """Every kind at once."""

    def make_part(self, part: str) -> Generator:
        return make_generator(part, parts=4, **EVERY_KIND)

    def expected_parts(self) -> dict[str, list[Any]]:
        records = make_generator(**EVERY_KIND)._make(0, 20, 1_700_000_000.0)
        return {str(part): records[part::4] for part in range(4)}


@pytest.mark.parametrize("parts", [1, 2, 7, 509, 1000])  # 509 is the length of a table.
async def test_parts_have_the_records_that_there_are_without_parts(parts: int) -> None:
    whole = await records_of(count=12_000)
    for part in {0, 1, parts - 1}:
        if part < parts:
            found = await records_of(count=12_000, parts=parts, part=str(part))
            assert found == whole[part::parts]


async def test_a_part_that_has_no_record_ends_at_once() -> None:
    assert await records_of(count=2, parts=3, part="2") == []


def test_all_parts_together_keep_the_rate(patient: PatientLoop) -> None:
    async def main() -> None:
        generator = make_generator("1", parts=4, rate=2)
        await generator.open(None)
        assert [(await generator.read()).position for _ in range(3)] == [1, 5, 9]
        assert patient.time() == pytest.approx(6.0)

    patient.run_until_complete(main())


async def test_a_position_of_another_part_is_a_mistake_of_configuration() -> None:
    with pytest.raises(ConnectorError, match="does not belong to part 1") as caught:
        await make_generator("1", parts=4).open(6)
    assert caught.value.cause is Cause.CONFIG


async def test_what_is_read_in_parts_is_not_opened_as_a_whole() -> None:
    with pytest.raises(ConnectorError, match="in parts"):
        await make_generator(parts=4).open(None)
    with pytest.raises(ConnectorError, match="part '4' does not exist"):
        make_generator("4", parts=4)


async def test_the_default_record_is_a_plausible_order() -> None:
    [order] = await records_of(count=1)
    assert list(order) == ["id", "kind", "user", "total", "ts", "note"]
    assert list(order["user"]) == ["name", "email"]
    assert order["ts"] == 1_700_000_000.0


async def test_the_size_of_the_batches_does_not_change_the_records() -> None:
    assert await records_of(count=12_000, batch=7) == await records_of(count=12_000, batch=11_000)


async def test_another_seed_makes_other_records() -> None:
    assert await records_of(count=10, seed=1) != await records_of(count=10, seed=2)


async def test_two_fields_of_one_kind_differ() -> None:
    records = await records_of(count=20, fields={"a": "int", "b": "int"})
    assert [record["a"] for record in records] != [record["b"] for record in records]


async def test_uuids_and_times_do_not_repeat() -> None:
    records = await records_of(count=10_000, fields={"uuid": "uuid", "time": "time"})
    assert len({record["uuid"] for record in records}) == 10_000
    assert len({record["time"] for record in records}) == 10_000


async def test_fields_may_be_none_at_all() -> None:
    assert await records_of(count=2, fields={}) == [{}, {}]


async def test_a_count_that_was_reached_before_ends_at_once() -> None:
    assert await records_of(9, count=10) == []
    assert await records_of(20, count=10) == []
    assert await records_of(count=0) == []


@pytest.mark.parametrize("position", [-1, "7", 1.5, True, {"id": 3}])
async def test_a_position_that_is_no_index_is_a_mistake_of_configuration(position: Any) -> None:
    with pytest.raises(ConnectorError) as caught:
        await make_generator().open(position)
    assert caught.value.cause is Cause.CONFIG


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0},
        {"rate": -1},
        {"rate": float("nan")},
        {"batch": 0},
        {"fields": {"a": "colour"}},
        {"speed": 1},
        {"parts": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GeneratorOptions(**options)


def test_seed_fields_and_parts_say_which_data_it_is() -> None:
    def identity(**options: Any) -> str:
        return identity_of(CONNECTOR.name, GeneratorOptions(**options))

    assert identity() == identity(rate=5, count=3, batch=2)
    assert len({identity(), identity(seed=1), identity(fields={"a": "int"}), identity(parts=1)}) == 4
    assert identity() == "71c2fccdae7ccf97", "as before there were parts: old positions go on"


def test_a_slow_stream_sleeps_a_minute_without_waking(patient: PatientLoop) -> None:
    async def main() -> None:
        generator = make_generator(rate=1 / 60)
        await generator.open(None)
        assert [(await generator.read()).position for _ in range(3)] == [0, 1, 2]

    patient.run_until_complete(main())
    assert patient.selector.waits == pytest.approx([60, 60, 60])


def test_a_late_reader_gets_all_that_is_due_and_the_pace_does_not_drift(patient: PatientLoop) -> None:
    async def main() -> None:
        generator = make_generator(rate=10)
        await generator.open(None)
        await asyncio.sleep(1.05)
        assert len((await generator.read()).records) == 10
        assert patient.time() == pytest.approx(1.05)
        assert len((await generator.read()).records) == 1
        assert patient.time() == pytest.approx(1.1)

    patient.run_until_complete(main())


def test_a_fast_stream_makes_a_tick_of_records_at_a_time(patient: PatientLoop) -> None:
    async def main() -> None:
        generator = make_generator(rate=100_000)
        await generator.open(None)
        sizes = [len((await generator.read()).records) for _ in range(100)]
        assert sizes == [1000] * 100
        assert patient.time() == pytest.approx(1.0)

    patient.run_until_complete(main())


def test_a_restarted_stream_does_not_make_up_for_the_pause(patient: PatientLoop) -> None:
    async def main() -> None:
        generator = make_generator(rate=10)
        await generator.open(None)
        first = await generator.read()
        await asyncio.sleep(3600)
        await generator.open(first.position)
        second = await generator.read()
        assert (first.position, second.position, len(second.records)) == (0, 1, 1)

    patient.run_until_complete(main())


def test_a_read_that_is_cancelled_while_it_waits_makes_no_record(patient: PatientLoop) -> None:
    async def main() -> None:
        generator = make_generator(rate=1)
        await generator.open(None)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(generator.read(), 0.5)
        assert (await generator.read()).position == 0
        assert patient.time() == pytest.approx(1.0)

    patient.run_until_complete(main())
