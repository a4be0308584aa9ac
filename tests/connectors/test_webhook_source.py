"""The webhook source: what is in the inbox, in order, as every source gives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.connectors.api import INBOX_IDENTITY, Inbox, Received, Source
from headgate.connectors.webhook import source
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


async def test_text_is_decoded_in_goes_as_if_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BYTES_AT_ONCE", 2)
    decoding = WebhookSource(WebhookOptions(format="text"), make_context(inbox=cast(Inbox, object())))
    for body in ("a é €  𝄞 𝄞".encode(), b"\xff\xfe a \xe2\x82", b"\xf0\x9d\x84", b""):
        received = cast(Received, SimpleNamespace(body=body))
        assert await decoding._records([received]) == [{"body": body.decode("utf-8", "replace")}]
