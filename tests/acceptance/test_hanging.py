"""A source that hangs: its node, its health, and everything that people look at say so."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from tests import harness_connector
from tests.commands import headgate
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
# A minute is too long for a test.
IMPATIENT = textwrap.dedent("""
    import sys
    from headgate.datasources import health
    from headgate.runtime.streams import reporter
    from headgate.telemetry import metrics
    health.STUCK_S = health.WAITED_S = 1.0
    reporter.FIGURES_S = metrics.FRESH_S = 0.2
    metrics.SHARE = 1.0
    from headgate.cli import main
    sys.argv = ["headgate", "up", "--port", "0"]
    main()
""")


def reads(type: str, value: str = "", **more: Any) -> dict[str, Any]:
    return {"source": {"type": type, "value": value}, "sink": {"type": "blackhole"}, **more}


def test_a_source_that_hangs_is_seen_by_whoever_looks_until_it_goes_on(start_node: Any, tmp_path: Path) -> None:
    harness_connector.install(tmp_path / "installed")
    script, mark = tmp_path / "node.py", tmp_path / "mark"
    script.write_text(IMPATIENT)
    path = f"{tmp_path / 'installed'}:{ROOT}:{ROOT / 'src'}"
    node = start_node(environment={"PYTHONPATH": path}, program=[str(script)])
    node.apply(
        {
            "hangs": reads("hanging", str(mark)),
            "blocks": reads("blocking", expect={"fresh_within": "1s"}),
            "waits": {"source": {"type": "webhook"}, "sink": {"type": "blackhole"}},
        }
    )

    def metric(name: str, **labels: str) -> str:
        text = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
        lines = node.request("GET", "/metrics").text.splitlines()
        start = f"{name}{{{text}}} "
        return next((line.removeprefix(start) for line in lines if line.startswith(start)), "")

    found = node.wait_for("hangs", lambda found: found["health"] == "degraded")
    assert "it has not read for" in found["why"]
    assert "although 3 records wait" in found["why"]
    assert (found["worker_status"], found["metrics"]["backlog_records"]) == ("RUNNING", 3)
    lines = node.call("GET", "/api/datasources/hangs/explain")["lines"]
    assert any(line.startswith("Something hangs: it has not read for") for line in lines)
    # One that blocks cannot be asked what waits. That it waits is said, and what was expected is missed.
    found = node.wait_for("blocks", lambda found: found["health"] == "degraded")
    assert "expected one within 1s" in found["why"]
    lines = node.call("GET", "/api/datasources/blocks/explain")["lines"]
    assert any("It has waited for its source for" in line for line in lines)
    # One for which nothing waits is well.
    assert node.call("GET", "/api/datasources/waits")["health"] == "ok"
    listed = headgate(node.home, "ds", "list", "--url", node.url, HEADGATE_TOKEN=node.token).stdout
    assert "! hangs: it has not read for" in listed
    assert "! blocks: no record for" in listed
    assert any("hangs" in line for line in node.call("GET", "/readyz")["degraded"])
    wait_until(lambda: metric("headgate_datasource_health", datasource="hangs", status="degraded") == "1.0")
    assert metric("headgate_datasource_health", datasource="waits", status="ok") == "1.0"
    assert metric("headgate_backlog_records", datasource="hangs", stream="hangs:0") == "3.0"
    mark.touch()
    found = node.wait_for("hangs", lambda found: found["health"] == "ended")
    assert found["metrics"]["records_written"] == 3
    assert node.end() == 0  # It stops in time, whatever hangs.
