"""Streams whose connector lives in a process: one that crashes fails alone, and none is left when a node is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from headgate.testing.processes import NodeProcess
from tests import lodger
from tests.runtime.conftest import BLACKHOLE, IDS, Harness, postgres
from tests.waiting import until, wait_until

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="wardens look into /proc")


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A stack with all local variables takes seconds to draw, and the node's loop waits for it.
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.processors.add_log_level, plain])
    folder = tmp_path_factory.mktemp("installed") / "site"
    with monkeypatch.context() as patch:
        lodger.install(folder, patch)
        yield folder
    lodger.forget_plugins()


async def test_one_stream_crashes_and_comes_back_while_the_other_goes_on(hg: Harness, tmp_path: Path) -> None:
    """Through both sides in processes, exactly once."""
    crashing = {"type": "lodger", "count": 60, "does": "crash", "when": "ack", "once": str(tmp_path / "once")}
    (tmp_path / "other").mkdir()
    await hg.apply(
        broken={"source": crashing, "mapping": IDS, "sink": postgres(hg.url)},
        other={
            "source": {"type": "lodger", "count": 200, "batch": 20},
            "mapping": {"set": {"id": "id - 50"}},
            "sink": {"type": "lodger", "folder": str(tmp_path / "other")},
        },
    )
    await hg.until("broken", status="STOPPED", detail="finished")
    await hg.until("other", status="STOPPED", detail="finished")
    assert await hg.ids() == list(range(60))
    found = await hg.node.registry.get("broken")
    events = [(one.type, one.payload) for one in await hg.node.registry.events.last(found.id)]
    [failed] = [payload for type, payload in events if type == "worker_failed" and payload["cause"] == "bug"]
    assert "signal 11, a segmentation fault" in failed["error"]
    found = await hg.node.registry.get("other")
    events = [(one.type, one.payload) for one in await hg.node.registry.events.last(found.id)]
    assert "lodger_opened" in dict(events)
    # A busy machine may cost a node its trust; nothing else may fail it.
    assert [payload for type, payload in events if type == "worker_failed" and payload["cause"] != "network"] == []
    assert [one["id"] for one in lodger.kept(tmp_path / "other")] == list(range(150))
    letters = await hg.sql("SELECT count(*) AS n FROM headgate.dead_letter")
    assert letters[0]["n"] == 50  # Those with a negative id: kept by the sink, and copied.


async def test_a_stream_whose_connector_hangs_is_stopped_in_time(hg: Harness, tmp_path: Path) -> None:
    for name, when in (("in-read", "read"), ("in-open", "open")):
        source = {"type": "lodger", "does": "block", "when": when}
        await hg.apply(**{name: {"source": source, "sink": BLACKHOLE}})

    def processes() -> int:
        return len(lodger.wardens(os.getpid()))

    await until(lambda: processes() >= 2, "both have begun")
    for name in ("in-read", "in-open"):
        await hg.node.registry.set_enabled(name, False, "tester")
        await hg.until(name, status="STOPPED")
    await until(lambda: processes() == 0, "their processes are gone")


def test_a_node_that_is_killed_leaves_no_process(start_node: Any, installed: Path, tmp_path: Path) -> None:
    source = {"type": "lodger", "does": "fork", "folder": str(tmp_path), "count": 10, "follows": True}
    path = os.pathsep.join([str(installed), str(Path(__file__).parents[2])])
    program = ["-m", "headgate.cli", "up", "--port", "0"]
    node: NodeProcess = start_node(environment={"PYTHONPATH": path}, program=program)
    node.apply({"orders": {"source": source, "sink": BLACKHOLE}})
    left = int(wait_until(lambda: (tmp_path / "left").exists() and (tmp_path / "left").read_text()))
    warden = _warden_of(left)
    assert warden
    os.kill(left, 0)
    node.end(signal.SIGKILL)
    for pid in (left, warden):
        wait_until(lambda pid=pid: not _lives(pid), "it is gone")


def _warden_of(pid: int) -> int:
    """What a process leaves becomes its warden's."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
