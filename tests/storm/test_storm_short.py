"""A small storm, on every run of the tests: nine datasources, one of each kind, and some dozen faults."""

from __future__ import annotations

from tests.storm import verdict
from tests.storm.scene import Settings
from tests.storm.storm import run

SEED = 245


def test_a_short_storm_loses_repeats_and_holds_up_nothing() -> None:
    report = run(Settings(seconds=12.0, seed=SEED, datasources=9, gap_s=0.6, lease_s=3.0))
    assert report.is_good, "\n".join(verdict.lines(report))
    assert sum(count for kind, count in report.faults.items() if not kind.startswith("(")) > 8
    assert sum(balance.sent for balances in report.balances.values() for balance in balances) > 500
