"""What a source acknowledges to its inbox may be cleaned, and nothing else."""

from __future__ import annotations

from uuid import UUID

import pytest

from headgate.connectors.api import INBOX_IDENTITY
from headgate.connectors.webhook.options import WebhookOptions
from headgate.connectors.webhook.source import WebhookSource
from headgate.runtime.inbox import InboxHub
from headgate.store.database import Database
from headgate.store.datasources import Datasources
from headgate.store.inbox import InboxTable, Limit, Payload
from headgate.testing.factories import make_context


async def make_datasource(database: Database) -> UUID:
    async with Datasources(database).change("tester") as change:
        return (await change.create("hooks", True)).id


async def test_what_a_source_has_acknowledged_is_cleaned_before_the_registry_knows_its_position(
    database: Database,
) -> None:
    datasource, table = await make_datasource(database), InboxTable(database, INBOX_IDENTITY)
    hub = InboxHub(table)
    source = WebhookSource(WebhookOptions(), make_context(inbox=hub.of(datasource)))
    await table.append([Payload(datasource, "{}", b"1"), Payload(datasource, "{}", b"2")], {datasource: Limit()})
    await source.open(None)
    batch = await source.read()
    await table.append([Payload(datasource, "{}", b"3")], {datasource: Limit()})
    assert await table.clean(0, hub.acked) == 0
    await source.ack(batch.position)
    assert await table.clean(3600, hub.acked) == 0
    assert await table.clean(0, hub.acked) == 2
    assert [payload.body for payload in await table.after(datasource, 0, 10)] == [b"3"]
    assert await table.size(datasource) == (1, 1)


@pytest.mark.parametrize("closes", [False, True])
async def test_what_is_to_be_read_again_is_not_cleaned(database: Database, closes: bool) -> None:
    """Somebody has set the position back."""
    datasource, table = await make_datasource(database), InboxTable(database, INBOX_IDENTITY)
    hub = InboxHub(table)
    source = WebhookSource(WebhookOptions(), make_context(inbox=hub.of(datasource)))
    await table.append([Payload(datasource, "{}", b"1"), Payload(datasource, "{}", b"2")], {datasource: Limit()})
    await source.open(None)
    await source.ack((await source.read()).position)
    if closes:
        await source.close()  # And goes on on another node.
    else:
        await source.open(0)
        await source.read()
    assert await table.clean(0, hub.acked) == 0
