"""How long a test of one payload takes: the first on a node, which starts the zygote, and those after it."""

from __future__ import annotations

import statistics
import time

from bench.rig import running

ROUNDS = 30
NAME = "orders"
DOCUMENT = {
    "source": {"type": "webhook"},
    "mapping": {"where": "total > 0", "set": {"id": "id", "cents": "round(total * 100)", "name": "upper(name)"}},
    "sink": {"type": "blackhole"},
}
PAYLOAD = '{"id": 1, "total": 12.5, "name": "ada"}'


def main() -> dict[str, float]:
    """Measure over HTTP, print and return the figures in milliseconds."""
    with running() as rig:
        rig.node.call("POST", "/api/datasources", {"name": NAME, **DOCUMENT})

        def took_ms(payload: str) -> float:
            began = time.perf_counter()
            found = rig.node.call("POST", f"/api/datasources/{NAME}/test", {"payload": payload})
            assert found["written"], found
            return (time.perf_counter() - began) * 1e3

        cold = took_ms(PAYLOAD)
        warm = sorted(took_ms(PAYLOAD) for _ in range(ROUNDS))
        thousand = took_ms("\n".join([PAYLOAD] * 1000))
    found = {"cold_ms": cold, "warm_p50_ms": statistics.median(warm), "warm_worst_ms": warm[-1], "1000_ms": thousand}
    print(f"first test of a node    {cold:8.1f} ms")
    print(f"one payload, p50        {found['warm_p50_ms']:8.1f} ms")
    print(f"one payload, slowest    {warm[-1]:8.1f} ms of {ROUNDS}")
    print(f"1,000 records           {thousand:8.1f} ms")
    return found


if __name__ == "__main__":
    main()
