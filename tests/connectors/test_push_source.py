"""The push source: what a program has pushed and is not durable yet, as every source gives it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.connectors.api import Source
from headgate.connectors.push import PushOptions, PushSource
from headgate.runtime.push.feed import Piece, PushFeed
from headgate.testing.contract import SourceContract
from headgate.testing.factories import make_context

COUNT = 40


class TestPushSource(SourceContract):
    """One session's feed, in which each record came alone."""

    ends = False  # The program may push more.

    @pytest.fixture(autouse=True)
    def pushed(self) -> None:
        self._feed = PushFeed()
        self._feed.rewind(None)
        for id in range(COUNT):
            self._feed.append(Piece([id], [id], [{"id": id}], 300_000, None))

    def make_source(self) -> Source:
        return PushSource(PushOptions(), replace(make_context(), feed=self._feed))

    def expected(self) -> list[Any]:
        return list(range(COUNT))
