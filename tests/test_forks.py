"""The fork server that starts the nodes of tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.forks import FORKS_EXIST, Forked, Forks
from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S

pytestmark = pytest.mark.skipif(not FORKS_EXIST, reason="there are no pidfds here")

IGNORING = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *sys.argv[1:]]).returncode)
"""


def status(pid: int, field: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{field}:"))


def ignores(pid: int, number: signal.Signals) -> bool:
    return bool(int(status(pid, "SigIgn"), 16) >> (number - 1) & 1)


def run(forks: Forks, folder: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    with (folder / "out").open("w+b") as out, (folder / "errors").open("w+b") as errors:
        process = forks.start(arguments, env=os.environ | variables, cwd=folder, stdout=out, stderr=errors)
        code = process.wait(LONG_S)
        return code, (folder / "out").read_text(), (folder / "errors").read_text()


def test_a_command_has_its_own_arguments_streams_and_exit_code(forks: Forks, tmp_path: Path) -> None:
    assert run(forks, tmp_path, "--version")[:2] == (0, "headgate 0.1.0\n")
    code, out, errors = run(forks, tmp_path, "ds", "wrong")
    assert (code, out) == (2, "")
    assert "wrong" in errors


def test_a_command_has_its_own_environment_and_folder(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"url": "http://127.0.0.1:9", "pid": 1}')
    code, _, errors = run(forks, tmp_path, "ds", "list", HEADGATE_HOME=".")
    assert code != 0
    assert "no node answers at http://127.0.0.1:9" in errors


@pytest.fixture
def node(start_node: Any) -> NodeProcess:
    started: NodeProcess = start_node()
    return started


def test_a_node_is_a_process_with_its_own_session_and_nothing_of_the_server_open(node: NodeProcess) -> None:
    pid = node.process.pid
    assert isinstance(node.process, Forked)
    assert os.getsid(pid) == pid
    assert node.call("GET", "/api/nodes")["items"][0]["status"] == "up"
    server = int(status(pid, "PPid"))
    assert status(server, "Threads") == "1"
    ours = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    theirs = {os.readlink(f"/proc/{server}/fd/{fd}") for fd in os.listdir(f"/proc/{server}/fd")}
    assert not {name for name in ours & theirs if name.startswith(("socket:", "pipe:"))}


def test_a_node_is_stopped_and_killed_like_any_other(node: NodeProcess) -> None:
    assert node.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        node.process.wait(0.01)
    assert node.end(signal.SIGKILL) == -signal.SIGKILL
    assert node.process.poll() == -signal.SIGKILL
    assert not Path(f"/proc/{node.process.pid}").exists()


def test_a_node_drains_when_told_to(node: NodeProcess) -> None:
    assert node.end(signal.SIGTERM) == 0


def test_ctrl_c_ends_what_tests_start_though_the_tests_ignore_it(tmp_path: Path) -> None:
    """As `nohup make test &` has them do."""
    chosen = ["tests/test_forks.py::test_ctrl_c_drains_a_node", "tests/cli/test_failures.py::test_ctrl_c_is_quiet"]
    command = [sys.executable, "-c", IGNORING, *chosen]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("PASSED") == 2, result.stdout


def test_ctrl_c_drains_a_node(node: NodeProcess) -> None:
    assert not ignores(node.process.pid, signal.SIGINT)
    assert node.end(signal.SIGINT) == 0


def test_what_still_runs_ends_with_the_server(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forks = Forks()
    monkeypatch.setattr(NodeProcess, "forks", forks)
    node = NodeProcess.start(tmp_path, database=url)
    forks.close()
    assert node.process.wait(LONG_S) == -signal.SIGKILL
