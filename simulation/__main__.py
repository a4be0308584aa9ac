"""`python -m simulation`: run many seeds, or one of them with its whole story."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from simulation.runner import Report, run_seed, seeds_of
from simulation.scenarios import NAMES

SHOW_EVERY_S = 2.0


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser("python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default: 1)")
    parser.add_argument("--only", choices=NAMES, help="only runs of this kind")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: everything that happened")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return _one(given.seed, with_trace=given.trace)
    return _many(given.only, given.first, given.seeds)


def _one(seed: int, *, with_trace: bool) -> int:
    report = run_seed(seed)
    if with_trace:
        print("\n".join(report.trace.lines()))
    print(report.story())
    return 1 if report.violation is not None else 0


def _many(kind: str | None, first: int, number: int) -> int:
    began_s = shown_s = time.monotonic()
    counts: Counter[str] = Counter()
    failed: list[Report] = []
    events = 0
    for done, seed in enumerate(seeds_of(kind, first, number), start=1):
        report = run_seed(seed)
        events += report.events
        counts.update(report.counts)
        if report.violation is not None:
            failed.append(report)
            print(report.story(), end="\n\n")
        if time.monotonic() - shown_s > SHOW_EVERY_S and sys.stderr.isatty():
            shown_s = time.monotonic()
            print(f"\r{done} of {number} seeds, {len(failed)} violations", end="", file=sys.stderr)
    print(f"{number} seeds, {events:,} events, in {time.monotonic() - began_s:.0f} s")
    for name, count in sorted(counts.items()):
        print(f"  {name:<32} {count:>9,}")
    if failed:
        print(f"violations with seeds {', '.join(str(report.seed) for report in failed)}; --seed N --trace tells all")
        return 1
    print("every guarantee held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
