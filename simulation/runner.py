"""Runs seeds, and says what came of them."""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from simulation.scenarios import Kind, kind_of
from simulation.trace import Trace, Violation
from simulation.world import World

COLLECT_EVERY = 10  # Runs: a collection takes as long as a quarter of one, and a world some megabytes.

_runs = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Report:
    """What came of one seed."""

    seed: int
    kind: str
    now_s: float  # The virtual time at which it ended.
    events: int
    trace: Trace
    violation: Violation | None

    @property
    def counts(self) -> Counter[str]:
        """How often what happened."""
        return self.trace.counts

    def story(self) -> str:
        """For a person: what does not hold, and what led to it."""
        violation = self.violation
        if violation is None:
            return f"seed {self.seed} ({self.kind}): everything holds"
        head = f"seed {self.seed} ({self.kind}) violates {violation.guarantee}\nat {self.now_s:.4f} s: {violation.text}"
        about = ", ".join(sorted(violation.about)) or "everybody"
        return "\n".join((head, f"The last events of {about}:", *self.trace.last(violation.about)))


def run_seed(seed: int, kind: Kind | None = None) -> Report:
    """Run one seed to its end, or to its first violation."""
    was_collecting = gc.isenabled()
    gc.disable()  # A world is one large knot that lives until its end: looking into it meanwhile finds nothing.
    try:
        return _run(World(seed, kind or kind_of(seed)), seed)
    finally:
        if was_collecting:
            gc.enable()
        if next(_runs) % COLLECT_EVERY == 0:
            gc.collect()


def _run(world: World, seed: int) -> Report:
    violation = None
    try:
        world.run()
    except Violation as found:
        violation = found
    world.end()
    return Report(seed, world.kind.name, world.loop.now_s, world.loop.events, world.trace, violation)


def seeds_of(kind: str | None, first: int, number: int) -> Iterator[int]:
    """`number` seeds from `first` on; of one kind, if it is named."""
    seed = first
    while number > 0:
        if kind is None or kind_of(seed).name == kind:
            yield seed
            number -= 1
        seed += 1
