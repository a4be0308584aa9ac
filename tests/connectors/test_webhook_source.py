"""The webhook source: what is in the inbox, in order, as every source gives it."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.connectors.api import INBOX_IDENTITY, Source
from headgate.connectors.webhook.options import WebhookOptions
from headgate.connectors.webhook.source import WebhookSource
from headgate.runtime.inbox import InboxHub
from headgate.store.database import Database
from headgate.store.datasources import Datasources
from headgate.store.inbox import InboxTable, Limit, Payload
from headgate.testing.contract import SourceContract
from headgate.testing.factories import make_context

COUNT = 40


class TestWebhookSource(SourceContract):
    """Payloads in a real inbox, seven at a time."""

    ends = False  # More may come.

    @pytest.fixture(autouse=True)
    async def payloads(self, database: Database) -> None:
        async with Datasources(database).change("tester") as change:
            datasource = (await change.create("hooks", True)).id
        table = InboxTable(database, INBOX_IDENTITY)
        for id in range(COUNT):
            payload = Payload(datasource, "{}", b'{"id":%d}' % id)
            assert await table.append([payload], {datasource: Limit()}) == set()
        self._inbox = InboxHub(table).of(datasource)

    def make_source(self) -> Source:
        return WebhookSource(WebhookOptions(batch=7), make_context(inbox=self._inbox))

    def expected(self) -> list[Any]:
        return [{"id": id} for id in range(COUNT)]
