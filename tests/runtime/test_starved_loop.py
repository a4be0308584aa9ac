"""A starved loop is not a blocked one: how long its thread waits for a CPU is measured where it really waits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headgate.core import watchdog
from headgate.core.watchdog import Watch
from headgate.runtime.cluster.beat import Beat
from headgate.store.database import unchecked

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count it")

ENOUGH_S = 0.5


# The program itself, not a fork of one that has imported everything: imports are most of what a start costs.
STARVED_NODE = """
import os, sys
os.sched_setaffinity(0, {cpu})
os.nice(6)
from headgate.cli import main
sys.argv = ["headgate", "up", "--port", "0"]
main()
"""


@pytest.fixture
def busy_cpu() -> Iterator[int]:
    """A CPU on which one process never rests: next to a node that is nice it gets four fifths, and others get on."""
    cpu = min(os.sched_getaffinity(0))
    command = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", command]) as busy:
        try:
            yield cpu
        finally:
            busy.kill()


@pytest.fixture
def starved(busy_cpu: int) -> Iterator[None]:
    """This thread shares its only CPU with it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {busy_cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def make_beat(home: Path) -> Beat:
    return Beat("postgresql://nowhere", unchecked, uuid4(), 5.0, home, on_ended=lambda: None)


async def test_what_a_starved_loop_waits_for_is_taken_off_its_silence(starved: None, tmp_path: Path) -> None:
    beat = make_beat(tmp_path)
    began = beat.moment()
    while (now := beat.moment()).waited_s - began.waited_s < ENOUGH_S:
        pass  # A loop that works, and does not get to.
    silent_s = watchdog.silent_s(Watch(began, began.at_s), now)
    assert silent_s <= now.at_s - began.at_s - ENOUGH_S


async def test_what_a_loop_sleeps_through_counts_as_silence(tmp_path: Path) -> None:
    """A connector that blocks in a system call waits for no CPU."""
    beat = make_beat(tmp_path)
    began = beat.moment()
    over = threading.Event()
    threading.Timer(ENOUGH_S, over.set).start()
    over.wait()
    now = beat.moment()
    asleep_s = watchdog.silent_s(Watch(began, began.at_s), now)
    assert asleep_s > 0.0
    assert now.waited_s - began.waited_s < now.at_s - began.at_s


def test_a_node_that_starts_on_a_cpu_that_another_process_fills_comes_up_and_works(
    busy_cpu: int, start_node: Any, tmp_path: Path
) -> None:
    script = tmp_path / "node.py"
    script.write_text(STARVED_NODE.format(cpu={busy_cpu}))
    node = start_node(program=[str(script)])
    node.apply({"ticks": {"source": {"type": "generator", "rate": 10, "count": 5}, "sink": {"type": "blackhole"}}})
    found = node.wait_for("ticks", lambda found: found["detail"] == "finished")
    assert found["quarantine"] is None
    assert node.process.poll() is None
    assert "the event loop is blocked" not in node.log()
