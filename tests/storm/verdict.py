"""What is said at the end of a storm: what was done to the nodes, what became of the records, and what is wrong."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.storm.accounting import Balance

STEADY_AFTER_S = 600.0  # Memory is compared with what it was here,
JUDGED_AFTER_S = 1200.0  # in storms of this length and more,
WINDOW_S = 60.0  # over a minute each.
MOST_GROWTH = 0.05
MOST_SHOWN = 30  # Problems that are printed; the journal has all.


@dataclass
class Report:
    """All that is known of a storm."""

    seed: int
    seconds: float
    folder: Path
    faults: Counter[str] = field(default_factory=Counter)
    balances: dict[str, list[Balance]] = field(default_factory=lambda: defaultdict(list))  # By kind of datasource.
    plain: frozenset[str] = frozenset()  # Kinds whose sinks are not transactional.
    figures: dict[str, str] = field(default_factory=dict)
    memory: list[tuple[float, int]] = field(default_factory=list)  # Of the steady node: seconds, and kilobytes.
    wrong: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.wrong


def check_memory(memory: Sequence[tuple[float, int]], seconds: float) -> tuple[str, str | None]:
    """What the resident memory of the steady node did, and what is wrong with that."""
    if not memory:
        return "not known", "nobody looked at the memory of the steady node"
    last = _median(memory, memory[-1][0] - WINDOW_S)
    if seconds < JUDGED_AFTER_S:
        return f"{last / 1024:.0f} MB at the end (judged from {JUDGED_AFTER_S / 60:.0f} minutes on)", None
    first = _median(memory, STEADY_AFTER_S)
    growth = last / first - 1
    text = f"{first / 1024:.1f} MB at minute ten, {last / 1024:.1f} MB at the end: {growth:+.1%}"
    return text, None if growth <= MOST_GROWTH else f"the memory of the steady node grew: {text}"


def _median(memory: Sequence[tuple[float, int]], from_s: float) -> float:
    found = [size for at_s, size in memory if from_s <= at_s <= from_s + WINDOW_S]
    return statistics.median(found or [memory[-1][1]])


def lines(report: Report) -> list[str]:
    """The report, for people."""
    made = {kind: count for kind, count in report.faults.items() if not kind.startswith("(")}
    notes = {kind: count for kind, count in report.faults.items() if kind.startswith("(")}
    found = ["", f"seed {report.seed}, {report.seconds:.0f} s: {sum(made.values())} faults"]
    found += _listed(made) + _listed(notes)
    found += ["", f"{'':<10}{'sent':>10}{'rows':>10}{'letters':>9}{'filtered':>10}{'lost':>6}{'repeated':>10}"]
    for kind, balances in report.balances.items():
        found.append(_row(kind, balances, is_plain=kind in report.plain))
    found.append("")
    found += [f"{name:<44} {value}" for name, value in report.figures.items()]
    found.append("")
    if report.is_good:
        found.append("nothing was lost, repeated, reordered or stuck")
        return found
    found.append(f"WRONG, {len(report.wrong)} times:")
    found += [f"  {problem}" for problem in report.wrong[:MOST_SHOWN]]
    if len(report.wrong) > MOST_SHOWN:
        found.append("  … (all are in the journal)")
    found.append(f"the journal (storm.log) and the logs of all nodes and servers are in {report.folder}")
    found.append(f"the same plan again: make storm SECONDS={report.seconds:.0f} SEED={report.seed}")
    return found


def _listed(counts: Mapping[str, int]) -> list[str]:
    return [f"  {count:>5} {kind}" for kind, count in sorted(counts.items())]


def _row(kind: str, balances: Sequence[Balance], *, is_plain: bool) -> str:
    sent, rows, letters, filtered, lost, repeats = (
        sum(getattr(one, name) for one in balances)
        for name in ("sent", "rows", "letters", "filtered", "lost", "repeats")
    )
    note = "  (not transactional: repeats are lawful)" if is_plain else ""
    if lost and not any(one.problems for one in balances):
        note += "  (lost with an old primary, whose standby was asynchronous)"
    return f"{kind:<10}{sent:>10,}{rows:>10,}{letters:>9,}{filtered:>10,}{lost:>6,}{repeats:>10,}{note}"
