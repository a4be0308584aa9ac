"""The time for which a loop's thread waits for a CPU is measured where it really waits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from headgate.core import watchdog
from headgate.core.watchdog import Watch
from headgate.runtime.cluster.beat import Beat

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count it")

ENOUGH_S = 0.5


@pytest.fixture
def starved() -> Iterator[None]:
    """This thread shares one CPU with three processes that never rest."""
    before = os.sched_getaffinity(0)
    one = {min(before)}
    command = f"import os; os.sched_setaffinity(0, {one})\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", command]) for _ in range(3)]
    os.sched_setaffinity(0, one)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for process in busy:
            process.kill()
            process.wait()


def make_beat(home: Path) -> Beat:
    return Beat("postgresql://nowhere", uuid4(), 5.0, home, on_ended=lambda: None)


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
