"""Every figure that the documents state: `make bench`, or `python -m bench NAME…` for some of them."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from bench.rig import machine

ALL = (
    *(
        "mapping",
        "prices",
        "throughput",
        "webhooks",
        "scale",
        "rest",
        "console",
        "newcomer",
        "streams",
        "push",
        "doors",
        "handover",
    ),
    *("takeover", "groups", "turns", "join", "rabbitmq", "badrecords", "harness", "comeback", "process"),
    *(
        "connectors.bridges",
        "connectors.files",
        "connectors.http",
        "connectors.kafka",
        "connectors.nats",
        "connectors.redis",
        "connectors.mqtt",
        "connectors.rabbitmq",
        "connectors.webhook",
    ),
)


def main(arguments: list[str]) -> None:
    """Run them one after another and keep the figures in bench/results."""
    parser = argparse.ArgumentParser("python -m bench", description="Measure the figures that the documents state.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(ALL)}; without any: all of them")
    names = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"{unknown[0]} is no benchmark")
    print(machine())
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    for name in names or ALL:
        figures = importlib.import_module(f"bench.{name}").main()
        record = {"machine": machine(), "at": time.strftime("%Y-%m-%d %H:%M"), "figures": figures}
        (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
