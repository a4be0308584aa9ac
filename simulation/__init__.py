"""A deterministic simulator: the decisions of `headgate.core` on virtual time, with faults, from one seed.

    python -m simulation --seeds 1000
    python -m simulation --seed 17 --trace

`run_seed` is the whole of it for a program. What is simulated and what is checked: docs/concepts/simulation.md.
"""

from simulation.runner import Report, run_seed, seeds_of
from simulation.trace import Violation

__all__ = ["Report", "Violation", "run_seed", "seeds_of"]
