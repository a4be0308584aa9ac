"""What a shell does to a command in the background: it has the command ignore Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.cli.up import stopping_signals
from headgate.testing.processes import NodeProcess

IGNORING = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.argv = ["headgate", "up", "--port", "0"]
from headgate.cli import main
main()
"""


@pytest.fixture
def ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_by_default_both_signals_stop_us() -> None:
    assert stopping_signals() == [signal.SIGTERM, signal.SIGINT]


@pytest.mark.usefixtures("ignored")
def test_a_signal_that_we_were_started_to_ignore_does_not_stop_us() -> None:
    assert stopping_signals() == [signal.SIGTERM]


def test_a_node_in_the_background_goes_on_after_ctrl_c_and_drains_when_told_to(tmp_path: Path, url: str) -> None:
    node = NodeProcess.start(tmp_path / "node", database=url, program=["-c", IGNORING])
    try:
        node.process.send_signal(signal.SIGINT)
        assert node.request("GET", "/healthz").is_success
        assert node.end(signal.SIGTERM) == 0  # A second signal would end it at once, with 130.
    finally:
        node.end(signal.SIGKILL)
