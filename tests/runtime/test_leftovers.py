"""What a datasource leaves behind in its node once it is deleted: nothing, and nothing for the garbage collector.

The collector runs seldom on a node with many streams, so what only it can free would pile up meanwhile.
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest

from headgate.store.inbox import Limit, Payload
from tests.runtime.conftest import BLACKHOLE, Harness, generator, postgres

MAPPING = {"where": "id >= 0", "set": {"id": "id", "double": "id * 2"}}


@pytest.mark.parametrize("kind", ["blackhole", "postgres", "webhook"])
async def test_a_datasource_that_came_and_went_leaves_nothing_behind(hg: Harness, kind: str) -> None:
    await hg.apply(kept={"source": generator(), "sink": postgres(hg.url, "kept")})  # It keeps the sink's pool open.
    await hg.until("kept", status="RUNNING")
    await _come_and_go(hg, kind, 0)  # Loads and caches what the first of its kind needs.
    gc.collect()
    gc.disable()
    try:
        for number in range(1, 4):
            await _come_and_go(hg, kind, number)
        found = _garbage()
    finally:
        gc.enable()
    assert not found, found.most_common(20)
    assert hg.node.manager is not None
    assert [handle.name for handle in hg.node.manager.handles()] == ["kept:0"]
    assert not hg.node.inboxes.acked


async def _come_and_go(hg: Harness, kind: str, number: int) -> None:
    name = f"passing-{number}"
    document: dict[str, Any] = {"source": generator(), "mapping": MAPPING, "sink": BLACKHOLE}
    if kind == "postgres":
        document["sink"] = postgres(hg.url)
    if kind == "webhook":
        document["source"] = {"type": "webhook"}
    await hg.apply(**{name: document})
    await hg.until(name, status="RUNNING")
    found = await hg.node.registry.get(name)
    if kind == "webhook":
        await hg.node.inbox.append([Payload(found.id, "{}", b'{"id": 1}')], {found.id: Limit()})
        hg.node.inboxes.look()
        await hg.until_true(lambda: found.id in hg.node.inboxes.acked)
    await hg.node.registry.delete(name, "tester", yes=True)
    assert hg.node.manager is not None
    handles = hg.node.manager.handles
    await hg.until_true(lambda: all(handle.datasource != found.id for handle in handles()))


def _garbage() -> Counter[str]:
    """What the collector would free now, by type: things of ours only, or tasks, functions and frames."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        ours = [one for one in gc.garbage if _is_ours(one)]
        return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in ours)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def _is_ours(one: object) -> bool:
    module = type(one).__module__
    code = getattr(one, "__globals__", {}).get("__name__", "") if callable(one) else ""
    return module.startswith("headgate.") or str(code).startswith("headgate.") or type(one).__name__ == "Task"
