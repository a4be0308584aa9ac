"""Contestants take turns over the same data: ours, a peer, ours, a peer; the medians are compared.

A virtual machine shares its cores with others, and what they take is in nobody's figure but everybody's time. A run
during which they took much is taken again, whoever's it is.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

QUIET = 0.03  # Of the machine's cores, taken by others: a run with more is taken again,
TRIES = 4  # but not more often than this; the quietest counts.

Figures = dict[str, Any]


@dataclass(frozen=True)
class Took:
    """One run."""

    copy_s: float  # From the first row asked for to the last commit.
    wall_s: float  # The whole process.
    peak_mb: float = 0.0
    dump: str = ""
    first_s: float = 0.0  # From the command to the first chunk leased.
    stolen: float = 0.0  # Share of the machine that others had meanwhile,
    busy: float = 0.0  # and that was used here, by the servers as well.


@dataclass
class Contestant:
    """One of those who are compared."""

    name: str
    run: Callable[[], Took]
    reset: Callable[[], None] = lambda: None
    check: Callable[[], bool] | None = None  # Whether all values arrived as they were; after the first run.
    must_be_exact: bool = True
    turns: int = 99  # Whoever takes minutes does not need to take as many.
    took: list[Took] = field(default_factory=list)
    exact: bool | None = None
    failed: str = ""

    @property
    def copy_s(self) -> float:
        """The median."""
        return statistics.median(took.copy_s for took in self.took)

    @property
    def wall_s(self) -> float:
        """The median."""
        return statistics.median(took.wall_s for took in self.took)


@dataclass(frozen=True)
class Bar:
    """What should be reached: how many times as fast one must be as another."""

    one: str
    other: str
    least: float


class PeerFailed(Exception):
    """A peer could not do it, and why. The others go on."""


def contest(title: str, rows: int, contestants: list[Contestant], runs: int, bars: list[Bar]) -> Figures:
    """Run all in turn, as often as asked, and print what came of it."""
    print(f"\n{title}, {rows:,} rows, median of {runs}", flush=True)
    for turn in range(runs):
        for one in contestants:
            if not one.failed and turn < one.turns:
                _take_turn(one, is_first=turn == 0)
    return _shown(title, rows, contestants, bars)


def _take_turn(one: Contestant, *, is_first: bool) -> None:
    tries: list[Took] = []
    try:
        while len(tries) < TRIES and not any(took.stolen <= QUIET for took in tries):
            one.reset()
            tries.append(_watched(one.run))
    except PeerFailed as error:
        one.failed = str(error)
        return
    one.took.append(min(tries, key=lambda took: took.stolen))
    if is_first and one.check is not None:
        one.exact = one.check()
        assert one.exact or not one.must_be_exact, f"{one.name} changed values"


def _watched(run: Callable[[], Took]) -> Took:
    began_s, before = perf_counter(), _clocks()
    took = run()
    cores_s = (perf_counter() - began_s) * (os.cpu_count() or 1)
    busy, stolen = ((now - then) / cores_s for now, then in zip(_clocks(), before, strict=True))
    return replace(took, stolen=stolen, busy=busy)


def _clocks() -> tuple[float, float]:
    """The seconds that this machine has worked since it started, and those that others have had of it."""
    user, nice, system, _idle, _waits, irq, softirq, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / tick, stolen / tick


def _shown(title: str, rows: int, contestants: list[Contestant], bars: list[Bar]) -> Figures:
    figures: Figures = {}
    head = f"{'copy, s':>9}  {'least to most':<18}{'wall, s':>8}{'rows/s':>12}{'MB':>6}{'busy':>6}{'stolen':>8}  values"
    print(f"  {'':<44}{head}")
    for one in contestants:
        if one.failed or not one.took:
            print(f"  {one.name:<44} failed: {one.failed}")
            figures[f"{title}, {one.name}"] = f"failed: {one.failed}"
            continue
        all_s = sorted(took.copy_s for took in one.took)
        spread = f"{all_s[0]:.2f} to {all_s[-1]:.2f}"
        peak = max(took.peak_mb for took in one.took)
        values = {None: "", True: "exact", False: "changed"}[one.exact]
        busy = f"{statistics.median(took.busy for took in one.took):.0%}"
        stolen = f"{max(took.stolen for took in one.took):.0%}"
        line = f"{one.copy_s:>9.2f}  {spread:<18}{one.wall_s:>8.2f}{rows / one.copy_s:>12,.0f}"
        print(f"  {one.name:<44}{line}{f'{peak:.0f}' if peak else '':>6}{busy:>6}{stolen:>8}  {values}")
        figures[f"{title}, {one.name}, copy s"] = one.copy_s
        figures[f"{title}, {one.name}, wall s"] = one.wall_s
        figures[f"{title}, {one.name}, cores busy"] = statistics.median(took.busy for took in one.took)
    by_name = {one.name: one for one in contestants if one.took}
    for bar in bars:
        if bar.one in by_name and bar.other in by_name:
            ratio = by_name[bar.other].copy_s / by_name[bar.one].copy_s
            figures |= judged(f"{title}: {bar.one} against {bar.other}", ratio, at_least=bar.least)
    return figures


def judged(
    what: str, value: float, *, at_least: float | None = None, at_most: float | None = None, unit: str = ""
) -> Figures:
    """Print a figure beside its bar."""
    is_reached = value >= at_least if at_least is not None else at_most is not None and value <= at_most
    bar = f"≥ {at_least:g}{unit}" if at_least is not None else f"≤ {at_most:g}{unit}"
    print(f"  {what}: {value:,.2f}{unit}  (bar {bar}: {'reached' if is_reached else 'NOT reached'})", flush=True)
    return {what: value}
