"""The least that must work: a node starts as people start it, and a record gets through."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from headgate.testing.processes import NodeProcess


def test_a_node_with_its_own_database_starts_moves_a_record_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeProcess, "forks", None)
    out = tmp_path / "out.jsonl"
    node = NodeProcess.start(tmp_path / "home")
    try:
        assert isinstance(node.process, subprocess.Popen)
        node.apply({"orders": {"source": {"type": "webhook"}, "sink": {"type": "files", "path": str(out)}}})
        node.wait_for("orders", lambda found: found["worker_status"] == "RUNNING")
        assert node.request("POST", "/hooks/orders", json={"id": 1}).status_code == 202
        node.wait_for("orders", lambda found: bool(out.exists() and out.read_text()))
        assert '"id":1' in out.read_text()
        assert node.end(signal.SIGTERM) == 0
    finally:
        node.end(signal.SIGKILL)
