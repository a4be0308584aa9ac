"""Every figure that the documents state: `make bench`, or `python -m bench NAME…` for some of them."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

from bench.rig import machine

ALL = (
    *("mapping", "prices", "throughput", "webhooks", "scale", "rest", "streams", "push", "doors", "handover"),
    *("groups", "turns", "join", "rabbitmq"),
)


def main(names: list[str]) -> None:
    """Run them one after another and keep the figures in bench/results."""
    print(machine())
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    for name in names or ALL:
        figures = importlib.import_module(f"bench.{name}").main()
        record = {"machine": machine(), "at": time.strftime("%Y-%m-%d %H:%M"), "figures": figures}
        (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
