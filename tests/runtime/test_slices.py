"""Mapping on the event loop: in slices, with dear records in a thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headgate.core.mapping.document import Mapped, Mapping, compile_mapping
from headgate.runtime.streams.slices import map_all

LOOP = {"set": {"n": "count([x for x in xs])"}}


async def test_others_have_their_turn_after_each_slice() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    mapped = await map_all(compile_mapping({"set": {"a": "a"}}), [{"a": number} for number in range(5_000)])
    task.cancel()
    assert [record["a"] for record in mapped.records] == list(range(5_000))
    assert turns >= 8


async def test_a_dear_record_is_mapped_in_the_thread_of_such_records_and_its_neighbours_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: dict[int, str] = {}

    def apart(self: Mapping, records: list[Any], meta: list[Any] | None, index: int, into: Mapped) -> int:
        threads[index] = threading.current_thread().name
        return whole(self, records, meta, index, into)

    whole = Mapping.apart
    monkeypatch.setattr(Mapping, "apart", apart)
    records = [{"xs": [1] * length} for length in (1, 60_000, 2, 70_000, 1_000_000, 3)]
    mapped = await map_all(compile_mapping(LOOP), records)
    assert [record["n"] for record in mapped.records] == [1, 60_000, 2, 70_000, 3]
    assert [failed.index for failed in mapped.failed if "too expensive" in failed.reason] == [4]
    assert threads.keys() == {1, 3, 4}
    assert all(name.startswith("mapping") for name in threads.values())


async def test_a_batch_of_nothing_is_mapped_at_once() -> None:
    assert await map_all(compile_mapping(None), []) == Mapped()


async def test_a_mapping_that_calls_python_is_never_run_on_the_loop() -> None:
    threads: set[str] = set()

    def clean(record: dict[str, Any], meta: Any) -> dict[str, Any]:
        threads.add(threading.current_thread().name)
        return record

    mapping = compile_mapping({"python": "shop:clean"}, load=lambda name: clean)
    mapped = await map_all(mapping, [{"a": number} for number in range(1_500)])
    assert len(mapped.records) == 1_500
    assert all(name.startswith("mapping-python") for name in threads)
    assert await map_all(mapping, []) == Mapped()
