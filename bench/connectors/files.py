"""JSON Lines → mapping of six fields → JSON Lines, against Bytewax and against Bento.

    python -m bench connectors.files

All read the same file on the same core, in turn, and what they have written is compared: as many lines, with the same
fields and values. The speed is that of the growing file, from an eighth of it to its end, so how long a program takes
to start is no part of it. What they promise differs. Ours and Bytewax's sink call fsync after each batch, of the same
size in both; Bento's sink never does. Ours keeps its position, in a PostgreSQL on the other core, and a journal of what
it appends, so it goes on after a crash; the other two keep nothing here, and begin again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.connectors import peers
from bench.connectors.bare import RECORDS, bodies
from bench.dump.contest import PeerFailed, judged
from bench.dump.peers import install
from bench.dump.scene import ROOT
from bench.rig import NODE_CORE, Rig, cpu_s, pin, report, running
from bench.throughput import MAPPING, records_written

ROUNDS = 3
LOOK_S = 0.05
BAR = 1.2  # How many times as fast as Bytewax ours should be.
BYTEWAX = ROOT / ".bench/bytewax"
BENTO_MAPPING = """root.id = this.id
root.kind = this.kind
root.email = this.user.email.lowercase()
root.cents = (this.total * 100).round()
root.placed_at = this.ts.ts_parse("2006-01-02T15:04:05Z07:00").ts_format()
root.note = this.note.or("none")
"""


class Took(NamedTuple):
    """One run."""

    rate: float  # Records per second,
    cpu_us: float  # and the processor time of the program for each.


def watched(pid: int, written: Path, has_ended: Callable[[], bool]) -> Took:
    """What a process takes to write a file."""
    seen: list[tuple[int, float, float]] = []
    ends_s = time.monotonic() + peers.PATIENCE_S
    while len(seen) < 2 or seen[-1][0] != seen[-2][0] or not has_ended():  # To ask a node costs it something.
        if time.monotonic() > ends_s:
            raise PeerFailed(f"{written.name} has not been written in {peers.PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)
        seen.append((written.stat().st_size if written.exists() else 0, time.perf_counter(), cpu_s(pid)))
    if not (whole := seen[-1][0]):
        raise PeerFailed(f"{written.name} stays empty")
    first, began_s, began_cpu_s = next(one for one in seen if one[0] >= whole / 8)
    _, ended_s, ended_cpu_s = next(one for one in seen if one[0] == whole)
    records = RECORDS * (whole - first) / whole
    return Took(records / (ended_s - began_s), (ended_cpu_s - began_cpu_s) / records * 1e6)


def ours(rig: Rig, read: Path, written: Path) -> Took:
    """The node's."""
    name = written.stem
    document = {"source": {"type": "files", "path": str(read)}, "mapping": MAPPING}
    rig.node.apply({name: {**document, "sink": {"type": "files", "path": str(written)}}})
    return watched(rig.node.process.pid, written, lambda: records_written(rig.node, name) >= RECORDS)


def of_program(command: Sequence[str | Path], written: Path) -> Took:
    """A program's that ends when all is written, on the node's core."""
    words = written.with_suffix(".log")
    environment = {**os.environ, "GOMAXPROCS": str(len(NODE_CORE))}
    with words.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:

        def has_ended() -> bool:
            if process.poll():
                raise PeerFailed(f"{written.stem} is not measured: {words.read_text(errors='replace')[-500:]}")
            return process.returncode == 0

        try:
            pin(process.pid, NODE_CORE)
            return watched(process.pid, written, has_ended)
        finally:
            process.kill()


def of_bytewax(read: Path, written: Path) -> Took:
    """Bytewax's."""
    program = Path(__file__).parent / "bytewax_peer.py"
    return of_program([BYTEWAX / "bin/python", program, read, written], written)


def of_bento(program: Path, read: Path, written: Path) -> Took:
    """Bento's."""
    document: dict[str, Any] = {
        "http": {"enabled": False},
        "logger": {"level": "ERROR"},
        "input": {"file": {"paths": [str(read)], "scanner": {"lines": {}}}},
        "pipeline": {"processors": [{"mapping": BENTO_MAPPING}]},
        "output": {"file": {"path": str(written), "codec": "lines"}},
    }
    config = written.with_suffix(".json")
    config.write_text(json.dumps(document))
    return of_program([program, "-c", config], written)


def digest(written: Path) -> tuple[int, str]:
    """How many lines, and what is in them, whatever their order and that of their fields."""
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder(order="sorted").encode
    lines = sorted(encode(decode(line)) for line in written.read_bytes().splitlines())
    return len(lines), hashlib.sha256(b"\n".join(lines)).hexdigest()


def contestants(rig: Rig) -> dict[str, Callable[[Path, Path], Took]]:
    """Those that can be had."""
    found: dict[str, Callable[[Path, Path], Took]] = {"headgate": partial(ours, rig)}
    if problem := install(BYTEWAX, ["bytewax", "msgspec"], "Bytewax"):
        print(problem)
    else:
        found["Bytewax"] = of_bytewax
    try:
        found["Bento"] = partial(of_bento, peers.bento())
    except PeerFailed as error:
        print(error)
    return found


def main() -> dict[str, float]:
    """Run and print."""
    with tempfile.TemporaryDirectory(prefix="hgfiles") as folder, running(pinned=True) as rig:
        read = Path(folder) / "orders.jsonl"
        read.write_bytes(b"\n".join([*bodies(), b""]))
        all_took: dict[str, list[Took]] = {}
        digests: dict[str, tuple[int, str]] = {}
        all = contestants(rig)
        for round in range(ROUNDS):  # In turn, because others use the machine.
            for name, run in list(all.items()):
                written = Path(folder) / f"{name.lower()}-{round}.jsonl"
                try:
                    all_took.setdefault(name, []).append(run(read, written))
                except PeerFailed as error:
                    print(error)
                    del all[name], all_took[name]
                    continue
                digests[name] = digest(written)
                written.unlink()
                assert digests[name] == (RECORDS, digests["headgate"][1]), f"{name} has written something else"
    best = {name: max(found) for name, found in all_took.items()}
    figures = report(
        "JSON Lines → mapping of six fields → JSON Lines (python -m bench connectors.files)",
        {
            **{f"{name}, records/s, best of {ROUNDS}": found.rate for name, found in best.items()},
            **{f"{name}, processor time, µs a record": found.cpu_us for name, found in best.items()},
            **{f"against {name}": best["headgate"].rate / best[name].rate for name in best if name != "headgate"},
        },
    )
    if "Bytewax" in best:
        figures |= judged("ours against Bytewax", best["headgate"].rate / best["Bytewax"].rate, at_least=BAR)
    return figures


if __name__ == "__main__":
    main()
