"""Many documents at once: what it takes to read and check them is taken from nobody else."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headgate.web.api import registry
from tests.web_node import Web, bearer


@pytest.mark.parametrize(
    ("reader", "data"), [("gather_all", {"datasources": {}}), ("gather_yaml", {"yaml": "datasources: {}"})]
)
async def test_many_documents_are_read_in_threads_of_their_own(
    monkeypatch: pytest.MonkeyPatch, reader: str, data: dict[str, Any]
) -> None:
    """Read on the event loop, eight plans of a viewer ended the node."""
    threads = []
    monkeypatch.setattr(registry, reader, lambda *_: threads.append(threading.current_thread().name))
    await registry._documents(data)
    assert [name.partition("_")[0] for name in threads] == ["documents"]


def test_of_many_problems_a_viewer_is_told_the_first(web: Web) -> None:
    source = {"type": "generator", **{f"rate{number}": 1 for number in range(2000)}}
    body = {"datasources": {f"d{number}": {"source": source, "sink": {"type": "blackhole"}} for number in range(3)}}
    answer = web.ask("POST", "/api/plan", json=body, headers=bearer(web.token("viewer")))
    assert (answer.status_code, len(answer.json()["problems"])) == (422, 1000)
