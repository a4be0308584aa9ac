"""The black hole: it counts, and it can be slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.blackhole import Blackhole, BlackholeOptions
from headgate.testing.contract import SinkContract
from headgate.testing.factories import make_context, make_grant


class TestBlackholeSink(SinkContract):
    """Nobody can look into it."""

    def make_sink(self) -> Blackhole:
        return Blackhole(BlackholeOptions(), make_context())

    async def read_back(self) -> list[dict[str, Any]] | None:
        return None


async def test_counts_what_falls_in() -> None:
    sink = Blackhole(BlackholeOptions(), make_context())
    await sink.open(make_grant())
    await sink.write(Outgoing([{"id": 1}, {"id": 2}], Progress()))
    await sink.write(Outgoing([{"id": 3}], Progress()))
    assert sink.written == 3


async def test_a_delayed_write_counts_nothing_before_its_delay_is_over() -> None:
    sink = Blackhole(BlackholeOptions(delay_s=3600), make_context())
    await sink.open(make_grant())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sink.write(Outgoing([{"id": 1}], Progress())), 0.01)
    assert sink.written == 0
