"""`python -m tests.storm`: a storm of faults over real nodes, and whether every record is where it should be."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from tests.storm import verdict
from tests.storm.plan import KINDS
from tests.storm.scene import Settings
from tests.storm.storm import run


def main(arguments: list[str] | None = None) -> int:
    """Have a storm; returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long faults are made (default: 600)")
    parser.add_argument("--seed", type=int, help="of the plan (default: any)")
    parser.add_argument("--datasources", type=int, default=60, help="how many, at most 60 (default: 60)")
    parser.add_argument("--gap", type=float, default=3.0, help="seconds between two faults, on average (default: 3)")
    parser.add_argument("--lease", type=float, default=5.0, help="of the nodes, in seconds (default: 5)")
    parser.add_argument(
        "--standby",
        choices=("none", "sync", "async"),
        default="none",
        help="whether the registry has a standby, which is promoted now and then (default: none)",
    )
    parser.add_argument("--with", dest="named", action="append", choices=[k.name for k in KINDS if k.is_asked_for])
    parser.add_argument("--keep", action="store_true", help="keep journal and logs even if nothing is wrong")
    given = parser.parse_args(arguments)
    seed = time.time_ns() % 1_000_000 if given.seed is None else given.seed
    settings = Settings(
        seconds=given.seconds,
        seed=seed,
        datasources=given.datasources,
        gap_s=given.gap,
        lease_s=given.lease,
        standby=given.standby,
        named=frozenset(given.named or ()),
        keep=given.keep,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Nodes and servers are ended then, too.
    report = run(settings, lambda line: print(line, flush=True))
    print("\n".join(verdict.lines(report)))
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
