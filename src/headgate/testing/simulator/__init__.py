"""A deterministic simulator: the decisions of `headgate.core` on virtual time, with faults, from one seed.

    python -m headgate.testing.simulator --seeds 1000
    python -m headgate.testing.simulator --seed 17 --trace

`run_seed` is the whole of it for a program. What is simulated and what is checked: docs/concepts/simulation.md.
"""

from headgate.testing.simulator.runner import Report, run_seed, seeds_of
from headgate.testing.simulator.trace import Violation

__all__ = ["Report", "Violation", "run_seed", "seeds_of"]
