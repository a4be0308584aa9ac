"""The warden without namespaces, or without root: it finds what a process leaves behind, and kills all of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from headgate.runtime.harness.wire import Ended
from tests.waiting import LONG_S

ROOT = Path(__file__).parents[2]
SCRIPT = """
    import os, socket, sys
    from headgate.runtime.harness import limits, warden
    from headgate.runtime.harness.wire import Limits, Request
    from tests.harness_connector import DEEDS

    if sys.argv[4] == "without namespaces":
        limits.separate = lambda *, has_network: []
    else:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    bounds = Limits(wall_s=float(sys.argv[2]))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def work():
        ours.close()
        limits.confine(bounds, "nobody")
        DEEDS[sys.argv[1]](sys.argv[3])
        os._exit(0)

    pid = os.fork()
    if pid == 0:
        ours.close()
        warden.watch(Request(bounds, "nobody"), theirs, work)
    theirs.close()
    if sys.argv[3] == "gone":
        ours.close()
        os.waitpid(pid, 0)
        os._exit(0)
    sys.stdout.buffer.write(ours.recv(4096))
    sys.stdout.flush()
    os.waitpid(pid, 0)
"""


def watched(does: str, wall_s: float, value: str = "", way: str = "without namespaces") -> tuple[bytes, list[str]]:
    """What the warden says, and which processes are left."""
    mark = f"HARNESS_MARK={uuid4()}"
    name, _, text = mark.partition("=")
    environment = {**os.environ, name: text, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), does, str(wall_s), value, way]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=LONG_S, check=True)
    return done.stdout, [pid for pid in os.listdir("/proc") if pid.isdecimal() and _is_of(pid, mark.encode())]


def _is_of(pid: str, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("does", "value", "hows"),
    [
        ("fork", "", {"wall", "memory"}),
        ("fork", "leaves its group", {"wall", "memory"}),
        ("children", "", {"exit"}),
        ("ignore", "", {"wall"}),
        ("loop", "", {"wall"}),
        ("segfault", "", {"signal"}),
        ("exit", "", {"exit"}),
    ],
)
def test_nothing_is_left_of_it(does: str, value: str, hows: set[str]) -> None:
    said, left = watched(does, 1.0, value)
    ended = msgspec.msgpack.decode(said, type=Ended)
    assert ended.how in hows
    assert ended.apart == []
    assert left == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else first")
@pytest.mark.parametrize(("does", "hows"), [("fork", {"wall", "memory"}), ("children", {"exit"}), ("exit", {"exit"})])
def test_a_node_without_root_leaves_nothing_either(does: str, hows: set[str]) -> None:
    """In a user namespace, where the machine allows that."""
    said, left = watched(does, 1.0, "", "without root")
    ended = msgspec.msgpack.decode(said, type=Ended)
    assert ended.how in hows
    assert ended.apart in ([], ["user", "pid", "ipc", "net"])
    assert left == []


def test_it_ends_when_its_node_is_gone() -> None:
    _, left = watched("ignore", 600.0, "gone")
    assert left == []
