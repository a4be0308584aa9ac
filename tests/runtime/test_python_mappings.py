"""A mapping's own function in Python, on a real node: what it does, it does to its own process and its own record."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.core.reach import Kind
from headgate.core.records import Totals
from headgate.datasources import hosted
from headgate.datasources.documents import read_all
from headgate.errors import ConfigError
from tests.runtime.conftest import Harness, generator
from tests.runtime.test_dead_letters import TAKING, Given, Plug, Taking, open_letters, totals

MODULE = """
import ctypes, os, pathlib, time

def clean(record, meta):
    match record.get("do"):
        case "raise": raise ValueError("SEKRIT")
        case "exit": os._exit(3)
        case "leave": raise SystemExit(3)
        case "crash": ctypes.string_at(0)
        case "hang": time.sleep(600)
        case "die once":
            mark = pathlib.Path(record["mark"])
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), 9)
        case "wait":
            while not pathlib.Path(record["mark"]).exists():
                time.sleep(0.01)
        case "set": return {"id": {1, 2}}
    secrets = [name for name in os.environ if name.startswith("HEADGATE_")]
    print("SEKRIT", record)
    return {**record, "pid": os.getpid(), "secrets": secrets}

def twice(record, meta):
    return [{"id": record["id"]}, {"id": -record["id"]}]
"""
SLOW = "import pathlib, time\nwhile not pathlib.Path({mark!r}).exists(): time.sleep(0.01)\ndef clean(r, m): return r\n"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which modules are found. The processes of these tests end with each of them."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "shop_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    own = hosted._Processes()
    monkeypatch.setattr(hosted, "_processes", own)
    yield folder
    for idle in own._idle.values():
        for process in idle:
            process.kill()


def orders(function: str = "shop_here:clean", **more: Any) -> dict[str, Any]:
    return {"source": {"type": "given"}, "mapping": {"python": function}, "sink": TAKING, **more}


async def ran(hg: Harness, plug: Plug, records: list[Any], function: str = "shop_here:clean") -> list[dict[str, Any]]:
    """What was written of these."""
    sink = Taking(names=True)
    plug(Given(records).connector())
    plug(sink.connector())
    await hg.apply(orders=orders(function))
    await hg.until("orders", status="STOPPED", detail="finished")
    return sink.written


async def test_it_runs_in_another_process_that_has_no_settings_of_the_node(
    hg: Harness, plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_MASTER_KEY", "SEKRIT")
    found = await ran(hg, plug, [{"id": number} for number in range(25)])
    assert [one["id"] for one in found] == list(range(25))
    (pid,) = {one["pid"] for one in found}  # And in the same one again and again.
    assert pid != os.getpid()
    assert found[0]["secrets"] == []


async def test_one_record_may_become_several(hg: Harness, plug: Plug) -> None:
    found = await ran(hg, plug, [{"id": 1}, {"id": 2}], "shop_here:twice")
    assert [one["id"] for one in found] == [1, -1, 2, -2]
    assert await totals(hg) == Totals(4, 4)


REASONS = {
    "raise": "the function raised ValueError",
    "leave": "the function raised SystemExit",
    "exit": "the function ended its process: exit code 3",
    "crash": "the function ended its process: signal 11",
    "hang": "the function did not return within 1 s",
    "set": "the function gave a value of type set, which records do not have",
}


@pytest.mark.parametrize("deed", REASONS)
async def test_what_goes_wrong_is_one_records_dead_letter_with_its_reason(
    hg: Harness, plug: Plug, deed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "CALL_S", 1.0 if deed == "hang" else 60.0)
    found = await ran(hg, plug, [{"id": 1}, {"id": 2, "do": deed}, {"id": 3}])
    assert [one["id"] for one in found] == [1, 3]
    assert await open_letters(hg) == [("number 1", "mapping", "python", REASONS[deed])]
    assert await totals(hg) == Totals(3, 2, 0, 1)


async def test_a_process_that_somebody_else_killed_is_no_records_fault(hg: Harness, plug: Plug, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    found = await ran(hg, plug, [{"id": 1}, {"id": 2, "do": "die once", "mark": mark}, {"id": 3}])
    assert [one["id"] for one in found] == [1, 2, 3]
    assert await open_letters(hg) == []


async def test_one_that_waits_holds_up_nobody_else_and_stops_in_time(hg: Harness, plug: Plug, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    sink = Taking(names=True)
    plug(Given([{"id": 1, "do": "wait", "mark": str(mark)}], ends=False).connector())
    plug(sink.connector())
    await hg.apply(orders=orders(), others={"source": generator(count=50), "sink": {"type": "blackhole"}})
    await hg.until("others", status="STOPPED", detail="finished")
    assert sink.written == []
    mark.touch()
    await hg.until_true(lambda: len(sink.written) == 1)


async def test_a_module_that_is_slow_to_start_holds_up_no_other_document(
    hg: Harness, plug: Plug, modules: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    (modules / "slow_here.py").write_text(SLOW.format(mark=str(mark)))
    sink = Taking(names=True)
    plug(Given([{"id": 1}], ends=False).connector())
    plug(sink.connector())
    applying = [asyncio.create_task(hg.apply(**{f"slow{n}": orders("slow_here:clean")})) for n in range(3)]
    await hg.apply(quick={"source": generator(count=5), "sink": {"type": "blackhole"}})
    await hg.until("quick", status="STOPPED", detail="finished")
    assert not any(one.done() for one in applying)
    mark.touch()
    await asyncio.gather(*applying)
    await hg.until_true(lambda: len(sink.written) == 3)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import os; os._exit(5)", "broken_here cannot be imported: it ended its process: exit code 5"),
        ("import ctypes; ctypes.string_at(0)", "broken_here cannot be imported: it ended its process: signal 11"),
        ("import time; time.sleep(600)", "broken_here cannot be imported: it took longer than 1 s"),
        ("1 / 0", "broken_here cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
async def test_a_module_that_cannot_be_imported_is_a_problem_of_the_document(
    hg: Harness, modules: Path, module: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "START_S", 1.0 if "sleep" in module else 60.0)
    (modules / "broken_here.py").write_text(module)
    with pytest.raises(ConfigError) as caught:
        await hg.apply(orders={**orders("broken_here:clean"), "source": generator(), "sink": {"type": "blackhole"}})
    assert [(one.path, one.message) for one in caught.value.problems] == [("datasources.orders.mapping.python", said)]


async def test_a_module_that_goes_away_fails_its_stream_and_no_record(hg: Harness, plug: Plug, modules: Path) -> None:
    source, sink = Given([{"id": 1}], ends=False), Taking(names=True)
    plug(source.connector())
    plug(sink.connector())
    await hg.apply(orders=orders())
    await hg.until_true(lambda: len(sink.written) == 1)
    for path in modules.iterdir():
        path.unlink() if path.is_file() else [one.unlink() for one in path.iterdir()]
    os.kill(sink.written[0]["pid"], signal.SIGKILL)
    source.records.append({"id": 2})
    state = await hg.until("orders", status="ERROR")
    assert state["error"]["cause"] == "config"
    assert "shop_here cannot be imported: ModuleNotFoundError" in state["error"]["message"]
    assert await totals(hg) == Totals(1, 1)
    (modules / "shop_here.py").write_text(MODULE)
    await hg.node.registry.restart("orders", "tester")
    await hg.until_true(lambda: len(sink.written) == 2)


async def test_only_admins_name_modules_that_are_on_no_list(hg: Harness) -> None:
    document = {**orders(), "source": generator(), "sink": {"type": "blackhole"}}
    documents = read_all({"datasources": {"orders": document}})
    with pytest.raises(ConfigError, match="shop_here is no Python module that may be reached"):
        await hg.node.registry.apply(documents, "operator", is_admin=False)
    assert hosted._processes._idle == {}  # Nothing was imported to find that out.
    await hg.node.registry.allow(Kind.MODULE, "shop_here", "admin")
    hg.node.registry._reaching = None  # Lists are known within a second.
    await hg.node.registry.apply(documents, "operator", is_admin=False)
    await hg.until("orders", status="RUNNING", detail="running")


async def test_what_it_calls_from_a_node_that_ends_ends_too(url: str, tmp_path: Path, modules: Path) -> None:
    """Even in the middle of a call."""
    process = hosted._Process("shop_here:clean")
    assert process.answer(60.0) == (b"R", b"")
    os.close(process._alive)  # As the kernel does for a process that ends.
    assert await asyncio.to_thread(process._process.wait, 60.0) == 1
    process._alive = os.open(os.devnull, os.O_RDONLY)
    process.kill()
