"""A node to play, and a client that does not make tests wait."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from scripted_node import Clock, ScriptedNode, scripted_node

from headgate.client import consumer, session
from headgate.core import backoff


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are part of the behaviour, made short."""
    monkeypatch.setattr(backoff, "FIRST_S", 0.01)
    monkeypatch.setattr(session, "ASK_AGAIN_S", 0.01)
    monkeypatch.setattr(consumer, "TICK_S", 0.01)


@pytest.fixture
async def node() -> AsyncIterator[ScriptedNode]:
    async with scripted_node() as node:
        yield node


@pytest.fixture
def clock() -> Clock:
    return Clock()
