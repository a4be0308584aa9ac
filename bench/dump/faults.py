"""A dump that is killed (kill -9) at random moments and resumed, while its source is written to; again and again.

What is played and audited stands in `tests.acceptance.dump_cycle`; the tests play a few of them.
"""

from __future__ import annotations

import asyncio
import time
from random import Random

from bench.dump.contest import Figures
from bench.dump.jobs import Asked
from bench.dump.scene import Scene
from tests.acceptance.dump_cycle import MODES, WORKERS, Cycle, Outcome, Place

ROWS, CHUNK_ROWS = 20_000, 250


def faults(scene: Scene, asked: Asked) -> Figures:
    """As many cycles as kills were asked for: each has one at least."""
    place = Place(scene.source, scene.target, scene.own, scene.home)
    began, seed = time.perf_counter(), Random().randrange(1 << 30)
    print(f"\nkilled at random moments and resumed, {ROWS:,} rows in chunks of {CHUNK_ROWS}, seed {seed}", flush=True)
    seen = asyncio.run(_play(place, asked.kills, seed))
    figures: Figures = {
        "cycles": len(seen),
        "cycles that kept every promise": sum(one.is_good for one in seen),
        "runs": sum(one.runs for one in seen),
        "kills": sum(one.kills for one in seen),
        "chunks": sum(one.chunks for one in seen),
        "chunks begun again": sum(one.again for one in seen),
        f"the most that were in flight ({WORKERS} for each kill)": sum(one.in_flight for one in seen),
        "rows lost": sum(one.lost for one in seen),
        "rows repeated": sum(one.repeated for one in seen),
        "rows changed that nobody touched": sum(one.changed for one in seen),
        "chunks repaired, since the source was written to": sum(one.repaired for one in seen),
        "targets equal to the planned keys of their source": sum(one.equal for one in seen),
        "minutes": round((time.perf_counter() - began) / 60, 1),
    }
    for name, value in figures.items():
        print(f"  {name:<58} {value:>10,}")
    for one in seen:
        for error in one.errors:
            print(f"  {error}")
    return {f"killed, {name}": value for name, value in figures.items()}


async def _play(place: Place, cycles: int, seed: int) -> list[Outcome]:
    seen = []
    for number in range(cycles):
        numbers = Random(seed + number)
        cycle = Cycle(place, numbers, f"killed_{number}", MODES[number % len(MODES)], ROWS, CHUNK_ROWS)
        seen.append(await cycle.run())
        if not seen[-1].is_good:
            print(f"  cycle {number}, {MODES[number % len(MODES)]}: {seen[-1]}", flush=True)
    return seen
