"""How long a unit of a record's budget takes, for each function and operator that is paid for.

The core takes a unit for about ten nanoseconds (`headgate.core.mapping.prices`). One that takes much longer would let a
record hold the event loop for longer than its price says.
"""

from __future__ import annotations

import time

from headgate.core.mapping.document import Mapped, compile_mapping
from headgate.core.mapping.prices import SLICE, Budget
from tests.core.test_prices import OTHERS, PRICED

ROUNDS = 5
PLENTY = 10**12


def main() -> dict[str, float]:
    """Measure each on an input that costs about half a slice, print and return the figures."""
    found = {}
    for name, (expression, record) in (PRICED | OTHERS).items():
        mapping, size = compile_mapping({"set": {"a": expression}}), 16
        best, units = float("inf"), 0
        while units < SLICE // 4 and size < 2_000_000:
            size, best = size * 2, float("inf")
            given = [record(size)]
            for _ in range(ROUNDS):
                budget = Budget(PLENTY)
                begin = time.perf_counter()
                mapping._run(given, None, 0, Mapped(), budget, False)
                best, units = min(best, time.perf_counter() - begin), PLENTY - budget.left
        found[name] = best / units * 1e9
        print(f"{name:16} {best * 1e3:8.3f} ms {units:10,} units {found[name]:8.2f} ns per unit")
    print(f"{'slowest':16} {max(found.values()):8.2f} ns per unit")
    return found


if __name__ == "__main__":
    main()
