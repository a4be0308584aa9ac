"""A database of an older release, with rows of every kind, becomes one of today: nothing is lost, and all is read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from headgate.connectors.api import INBOX_IDENTITY
from headgate.core.figures import LastFailure
from headgate.core.records import NOTHING
from headgate.store import migrate as migrating
from headgate.store.allowed import Allowed
from headgate.store.database import Database
from headgate.store.datasources import Datasources
from headgate.store.dumps import Dumps
from headgate.store.events import Events
from headgate.store.groups import Groups
from headgate.store.inbox import InboxTable
from headgate.store.letters import NOT_LOOKED_AT, Letters, Numbers
from headgate.store.migrate import migrate, migrations
from headgate.store.nodes import Nodes
from headgate.store.placement import Placement
from headgate.store.secrets import Keyring, Secrets, new_master_key
from headgate.store.states import States
from headgate.store.streams import Streams
from headgate.store.tokens import Tokens
from tests.runtime.conftest import running_node

ORDERS, HOOKS, AGENTS, GONE = (UUID(int=number) for number in range(1, 5))
FIRST, SECOND, LABELLED, OF_HOOKS = (UUID(int=number) for number in range(11, 15))
NODE, TOKEN, GROUP, DUMP = (UUID(int=number) for number in range(21, 25))
KEYRING = Keyring.load(new_master_key(), None)
BEFORE_RECORDS = 14  # The schema of the release before records were accounted for.
BEFORE_REWRAPPING = 18  # And of the one in which letters came.

# As that release wrote it: counts of a stream since its node took it, under older names.
METRICS = json.dumps(
    {
        "records_in": 900, "records_out": 800, "records_failed": 60, "records_skipped": 40, "bytes_in": 12345,
        "batches": 90, "errors": 2, "restarts": 1, "write_s": 1.5, "last_write_s": 0.01,
        "last_record_at_s": 1790000000.5, "lag_s": 0.25, "last_hour": 80,
    }
)  # fmt: skip
MAPPING = '{"set": {"id": "id"}, "on_error": "skip", "key": "id"}'
OLD = f"""
UPDATE headgate.registry SET revision = 9, group_epoch = 4;
INSERT INTO headgate.datasource
    (id, name, enabled, published_version, running_version, revision, restarts, quarantine, deleted, streams, dealt,
     parts)
VALUES ('{ORDERS}', 'orders', true, 2, 1, 9, 3, NULL, false, 2, 2, '["a", "b"]'),
       ('{HOOKS}', 'hooks', false, 1, 1, 8, 0, 'it hung', false, 1, 1, NULL),
       ('{AGENTS}', 'agents', true, 1, 1, 7, 0, NULL, false, 1, 1, NULL),
       ('{GONE}', 'gone', true, NULL, NULL, 6, 0, NULL, true, 1, 1, NULL);
INSERT INTO headgate.datasource_version
    (datasource, number, status, source, mapping, sink, options, secrets, hash, author, reason, is_trusted)
VALUES ('{ORDERS}', 1, 'superseded', '{{"type": "generator"}}', '{MAPPING}', '{{"type": "blackhole"}}',
        '{{"streams": 2}}', '{{}}', 'h1', 'ada', NULL, true),
       ('{ORDERS}', 2, 'rejected', '{{"type": "generator", "rate": 5}}', NULL,
        '{{"type": "postgres", "url": {{"$secret": "db"}}, "table": "t"}}', '{{"streams": 2}}', '{{db}}', 'h2', 'ada',
        'config: no such table', true),
       ('{ORDERS}', 3, 'draft', '{{"type": "generator"}}', NULL, '{{"type": "blackhole"}}', '{{}}', '{{}}', 'h3', 'bob',
        NULL, false),
       ('{HOOKS}', 1, 'published', '{{"type": "webhook"}}', NULL, '{{"type": "blackhole"}}', '{{}}', '{{}}', 'h4',
        'ada', NULL, true),
       ('{AGENTS}', 1, 'published', '{{"type": "push"}}', NULL, '{{"type": "blackhole"}}', '{{}}', '{{}}', 'h5', 'ada',
        NULL, true);
INSERT INTO headgate.token (id, name, role, hash, datasources, groups, author)
VALUES ('{TOKEN}', 'ci', 'operator', '\\x01', '{{orders-*}}', '{{}}', 'ada');
INSERT INTO headgate.token_address VALUES ('{TOKEN}', '10.0.0.1');
INSERT INTO headgate.session (id, hash, token, is_code, idle_at, expires_at)
VALUES ('{UUID(int=31)}', '\\x02', '{TOKEN}', false, now() + '1h', now() + '1h');
INSERT INTO headgate.allowed (kind, value, author) VALUES ('module', 'shop.cleaning', 'ada');
INSERT INTO headgate.node (id, name, beat, lease_s, address, version) VALUES ('{NODE}', 'left', 7, 5, NULL, '0.1');
INSERT INTO headgate.stream
    (id, datasource, index, label, owner, run, epoch, generation, commits, position, version, source_identity, settled)
VALUES ('{FIRST}', '{ORDERS}', 0, NULL, NULL, NULL, 6, 1, 90, '{{"a": 90}}', 1, 'generator', true),
       ('{SECOND}', '{ORDERS}', 1, NULL, NULL, NULL, 5, 0, 80, '{{"b": 80}}', 1, 'generator', false),
       ('{LABELLED}', '{AGENTS}', NULL, 'host-7', NULL, NULL, 2, 0, 5, '5', 1, 'push', true),
       ('{OF_HOOKS}', '{HOOKS}', 0, NULL, NULL, NULL, 3, 0, 4, '4', 1, '{INBOX_IDENTITY}', true);
INSERT INTO headgate.datasource_state
    (stream, datasource, worker_status, detail, node, version, epoch, metrics, error)
VALUES ('{FIRST}', '{ORDERS}', 'ERROR', 'backing off', '{NODE}', 1, 6, '{METRICS}',
        '{{"cause": "network", "message": "refused"}}'),
       ('{SECOND}', '{ORDERS}', 'RUNNING', 'running', '{NODE}', 1, 5, '{METRICS}', NULL),
       ('{LABELLED}', '{AGENTS}', 'STOPPED', 'stopped', NULL, 1, 2, '{{}}', NULL);
INSERT INTO headgate.datasource_events (datasource, name, type, payload, actor)
VALUES ('{ORDERS}', 'orders', 'published', '{{"version": 2}}', 'ada'), (NULL, NULL, 'allowed', '{{}}', 'ada');
INSERT INTO headgate.log_line (stream, at, level, text, fields) VALUES ('{FIRST}', now(), 'info', 'running', '{{}}');
INSERT INTO headgate.inbox (datasource, id, headers, body) VALUES ('{HOOKS}', 5, '{{}}', '{{"id": 5}}');
INSERT INTO headgate.inbox_size VALUES ('{HOOKS}', 1, 9);
INSERT INTO headgate.unable (stream, node, wanted_key, reason) VALUES ('{FIRST}', '{NODE}', '2/3', 'no driver');
INSERT INTO headgate.wish (stream, node, pinned) VALUES ('{SECOND}', '{NODE}', true);
INSERT INTO headgate.stream_history (stream, kind, actor, epoch, generation, commits, position, before)
VALUES ('{FIRST}', 'edited', 'ada', 6, 1, 90, '{{"a": 90}}', '{{"a": 80}}');
INSERT INTO headgate.consumer_group (id, stream, name, lease_s, epoch) VALUES ('{GROUP}', 'billing', 'one', 5, 3);
INSERT INTO headgate.consumer
    (id, "group", number, node, trust_s, label, connectivity, activity, epoch, incarnation, answered)
VALUES ('{UUID(int=41)}', '{GROUP}', 1, '{NODE}', 4, 'host-7', 'disconnected', 'waiting', 2, 1, true);
INSERT INTO headgate.dump (id, source, target, options, actor)
VALUES ('{DUMP}', 'postgresql://a/b', 'mysql://c/d', '{{}}', 'ada');
INSERT INTO headgate.dump_table (dump, number, name, target, job, size) VALUES ('{DUMP}', 0, 't', 't', '{{}}', 1000);
INSERT INTO headgate.dump_chunk (dump, "table", number, hi, rows) VALUES ('{DUMP}', 0, 0, '[5]', 5);
INSERT INTO headgate.dump_attempt (dump, "table", chunk, worker, kind, rows)
VALUES ('{DUMP}', 0, 0, 'w', 'completed', 5);
"""


@pytest.fixture
async def database(empty_url: str) -> AsyncIterator[Database]:
    database = await Database.open(empty_url)
    yield database
    await database.close()


async def migrate_to(number: int, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(migrating, "migrations", lambda: [one for one in migrations() if one[0] <= number])
        await migrate(database)


async def counts(database: Database) -> dict[str, int]:
    """How many rows each table of the schema has."""
    query = "SELECT relname FROM pg_class WHERE relnamespace = 'headgate'::regnamespace AND relkind = 'r' ORDER BY 1"
    names = [row["relname"] for row in await database.fetch(query) if row["relname"] != "migration"]
    return {name: await database.fetchval(f"SELECT count(*) FROM headgate.{name}") for name in names}


async def fill(database: Database) -> dict[str, int]:
    """Rows of every kind, as that release had them."""
    assert KEYRING is not None
    await database.execute(OLD)
    await database.execute(
        "INSERT INTO headgate.secret VALUES ('db', $1, $2, $3, 'ada')", *KEYRING.seal("db", "postgresql://x/y")
    )
    found = await counts(database)
    assert [name for name, number in found.items() if not number] == [], "every kind of row is there"
    return found


async def test_every_row_of_an_older_release_is_kept_and_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate_to(BEFORE_RECORDS, database, monkeypatch)
    before = await fill(database)
    await migrate(database)
    after = await counts(database)
    assert {name: after.get(name) for name in before} == before
    datasources = Datasources(database)
    assert [(one.name, one.published_version, one.quarantine) for one in await datasources.all()] == [
        ("agents", 1, None), ("hooks", 1, "it hung"), ("orders", 2, None),
    ]  # fmt: skip
    versions = [await datasources.version(ORDERS, number) for number in (1, 2, 3)]
    assert [one and (one.status, one.author, one.is_trusted) for one in versions] == [
        ("superseded", "ada", True), ("rejected", "ada", True), ("draft", "bob", False),
    ]  # fmt: skip
    assert versions[0] is not None
    assert (versions[0].content.mapping, versions[0].content.options) == (
        {"set": {"id": "id"}, "key": "id"}, {"streams": 2, "on_error": "skip"},
    )  # fmt: skip
    assert {entry.name for entry in await datasources.entries_since(0)} >= {"orders", "hooks", "agents"}
    assert await Secrets(database, KEYRING).read(["db"]) == {"db": "postgresql://x/y"}
    assert [(one.name, one.role) for one in await Tokens(database).all()] == [("ci", "operator")]
    assert {(one.kind, one.value) for one in await Allowed(database).all()} >= {("module", "shop.cleaning")}
    assert [one.name for one in await Nodes(database).all()] == ["left"]
    assert len(await Events(database).last(ORDERS)) == 1
    assert [one.id for one in await InboxTable(database, INBOX_IDENTITY).last(HOOKS, 10)] == [5]
    assert [one.name for one in await Groups(database).all()] == ["one"]
    assert [one.id for one in await Dumps(database, KEYRING).all()] == [DUMP]


async def test_what_streams_had_done_is_kept_and_counts_from_nothing_on(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older release knew what a stream had done since its node took it, and never what it had done in all."""
    await migrate_to(BEFORE_RECORDS, database, monkeypatch)
    await fill(database)
    await migrate(database)
    streams = {one.name: one for one in await Streams(database).all()}
    assert (streams["orders:0"].epoch, streams["orders:0"].commits, streams["orders:0"].position) == (6, 90, {"a": 90})
    (line,) = await Streams(database).history(FIRST, 10)
    assert (line.kind, line.actor) == ("edited", "ada")
    listing = await States(database).all()
    first, second = listing.of(ORDERS)[0]
    assert (first.worker_status, first.error) == ("ERROR", LastFailure("network", "refused"))
    assert first.totals == second.totals == NOTHING
    assert (first.reported.errors, first.reported.batches, first.reported.last_hour) == (2, 90, 80)
    assert first.reported.last_record_at_s == 1790000000.5
    assert listing.others[AGENTS].totals == NOTHING
    # The oldest node reports what nobody runs.
    assert {one.datasource for one in await States(database).resting(NODE, 100)} == {"orders"}
    assert await Letters(database, KEYRING).numbers(ORDERS) == Numbers()
    assert set((await Placement(database).grant([])).values()) <= {NODE}


async def test_a_node_of_today_runs_what_an_older_one_left(
    database: Database, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate_to(BEFORE_RECORDS, database, monkeypatch)
    await fill(database)
    async with running_node(empty_url, tmp_path / "home", keyring=KEYRING) as hg:
        for statement in (
            "DELETE FROM headgate.node WHERE name = 'left'",  # It is gone.
            "UPDATE headgate.datasource SET enabled = true, quarantine = NULL, revision = 10 WHERE name = 'hooks'",
            "UPDATE headgate.registry SET revision = 10",
        ):
            await database.execute(statement)

        async def has_read_on() -> bool:
            query = "SELECT commits, records_read, records_written FROM headgate.stream WHERE id = $1"
            (row,) = await hg.sql(query, OF_HOOKS)
            return tuple(row.values()) == (5, 1, 1)

        await hg.until_true(has_read_on)  # What waited in the inbox, and nothing before it.


async def test_letters_of_the_release_before_are_looked_at_once_for_their_key(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody had noted which master key wraps the copy in their sink."""
    await migrate_to(BEFORE_REWRAPPING, database, monkeypatch)
    await fill_others(database)
    letter = (
        "INSERT INTO headgate.dead_letter"
        " (id, datasource, stream, place, stage, reason, cause, version, first_at, last_at, size_bytes,"
        " key_id, payload, outcome, in_sink) VALUES"
        " ($1, $2, $3, 'line 7', 'sink', 'too large', 'bad_record', 1, now(), now(), 1, $4, $5, $6, $7)"
    )
    cases = [
        ("k", b"x", "open", True),
        (None, b"x", "open", True),
        ("k", b"x", "open", False),
        ("k", None, "replayed", True),
    ]
    for number, case in enumerate(cases):
        await database.execute(letter, UUID(int=100 + number), ORDERS, FIRST, *case)
    await migrate(database)
    found = await database.fetch("SELECT sink_key_id FROM headgate.dead_letter ORDER BY id")
    assert [row["sink_key_id"] for row in found] == [NOT_LOOKED_AT, None, None, None]
    assert await Letters(database, KEYRING).left_to_rewrap() == 1
    assert await Letters(database, KEYRING).numbers(ORDERS) == Numbers(open=3, replayed=1)


async def fill_others(database: Database) -> None:
    """A datasource with a stream."""
    lines = OLD.split(";\n")
    await database.execute(";".join(lines[1:2]))
    await database.execute(";".join(line for line in lines if "INTO headgate.stream\n" in line))
