"""The doctor's look into the database. Nothing is changed there, and a check that fails does not end the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from headgate.cli import keys
from headgate.cli.direct import opened
from headgate.cli.verdict import Verdict, fail, ok, warn
from headgate.config import Settings
from headgate.core.hosts import survey
from headgate.core.lease import BEAT_S
from headgate.core.lineage import Same, Unclaimed, judge
from headgate.errors import HeadgateError
from headgate.store import lineage
from headgate.store.database import Database, connect, refusals_in_words, split_url
from headgate.store.datasources import Datasources
from headgate.store.letters import Letters
from headgate.store.migrate import OLDEST_SERVER, migrations
from headgate.store.nodes import Nodes
from headgate.store.removals import Removals
from headgate.text import counted, duration, one_line

NOTIFY_S = 3.0
CLOCK_WARN_S = 2.0  # No decision hangs on it, but people read these times.
CHANNEL = "headgate_doctor"
SET_UP = "headgate.migration"


async def examine(url: str, settings: Settings) -> tuple[list[Verdict], str | None]:
    """Everything, in the order in which to fix it; and the installation, if there is one."""
    async with opened(url, any_lineage=True) as database:
        found = [ok("database", "reachable"), await _guarded("server", _server(database))]
        if database.has_several_hosts:
            found.append(await _guarded("hosts", _hosts(database)))
        found.append(await _guarded("listen", _listen(database)))
        found.append(await _guarded("clock", _clock(database)))
        schema = await _guarded("schema", _schema(database))
        found.append(schema)
        if await database.fetchval("SELECT to_regclass($1) IS NOT NULL", SET_UP):
            found.append(await _guarded("lineage", _lineage(database, settings)))
            found.append(await _guarded("standby", _standby(database)))
            found += await _all_guarded("secrets", keys.examine(database, settings))
            if schema.state == "ok":
                found.append(await _guarded("rotation", _rotation(database, settings)))
            found.append(await _guarded("nodes", _nodes(database)))
            found += await _registry_files(database)
            found += await _all_guarded("removals", _removals(database))
            return found, str(await Datasources(database).installation())
        return found, None


async def _registry_files(database: Database) -> list[Verdict]:
    """The nodes whose registry file is broken. What they run goes on, as the file was before."""
    try:
        nodes = await Nodes(database).all()
    except HeadgateError as error:
        return [fail("registry", error.message, error.hint)]
    hint = "mend the file: the node reads it again by itself"
    return [fail("registry", f"{one.name}: {one.registry_problem}", hint) for one in nodes if one.registry_problem]


async def _guarded(name: str, check: Awaitable[Verdict]) -> Verdict:
    async def found() -> list[Verdict]:
        return [await check]

    return (await _all_guarded(name, found()))[0]


async def _all_guarded(name: str, check: Awaitable[list[Verdict]]) -> list[Verdict]:
    try:
        with refusals_in_words():
            return await check
    except HeadgateError as error:
        return [fail(name, error.message, error.hint)]
    except OSError as error:
        return [fail(name, one_line(error), "check the network and the files of the connection")]


async def _server(database: Database) -> Verdict:
    number = int(await database.fetchval("SHOW server_version_num"))
    name = f"PostgreSQL {await database.fetchval('SHOW server_version')}"
    return ok("server", name) if number >= OLDEST_SERVER else fail("server", name, "Headgate needs 15 or newer")


async def _hosts(database: Database) -> Verdict:
    lines, wrong = survey(await database.survey_hosts())
    return warn("hosts", lines, wrong) if wrong else ok("hosts", lines)


async def _schema(database: Database) -> Verdict:
    newest = migrations()[-1][0]
    if not await database.fetchval("SELECT to_regclass($1) IS NOT NULL", SET_UP):
        return warn("schema", "not set up yet", "headgate up sets it up")
    number = await database.fetchval("SELECT coalesce(max(number), 0) FROM headgate.migration")
    if number < newest:
        return fail("schema", f"{number}, and this Headgate has {newest}", "headgate up brings it up to date")
    if number > newest:
        return fail("schema", f"{number}, and this Headgate knows {newest}", "upgrade Headgate here")
    return ok("schema", f"{number}, up to date")


async def _lineage(database: Database, settings: Settings) -> Verdict:
    """Whether the registry is the one that it was, as far as this home knows."""
    known = lineage.Witness(settings.home).known()
    async with database.transaction() as session:
        seen = await lineage.look(session)
    if seen is None:
        return ok("lineage", "of an older Headgate")
    finding = judge(seen.server, seen.kept, known.get(seen.kept.installation))
    if isinstance(finding, Same | Unclaimed):
        return ok("lineage", f"era {seen.kept.era}, timeline {seen.server.lineage.timeline}")
    error = lineage.displaced(finding)
    return fail("lineage", error.message, error.hint)


async def _standby(database: Database) -> Verdict:
    """Whether what was answered 202 survives the loss of this server."""
    found = await lineage.standbys(database)
    if found.standbys == 0:
        return ok("standby", "none: what this server loses is lost")
    if found.hidden:
        return warn("standby", f"{counted(found.standbys, 'standby')}, hidden from this user", "GRANT pg_monitor TO it")
    if found.synchronous and found.synchronous_commit != "off":
        return ok("standby", "synchronous: a failover loses nothing")
    hint = "set synchronous_standby_names, if what was answered 202 must survive a failover"
    return warn("standby", "asynchronous: a failover loses what was committed last", hint)


async def _listen(database: Database) -> Verdict:
    """A notification, sent over one connection and heard over another."""
    heard = asyncio.Event()

    def hear(*_: Any) -> None:
        heard.set()

    connection = await connect(database.url)
    try:
        await connection.add_listener(CHANNEL, hear)
        began_s = time.monotonic()
        await database.execute("SELECT pg_notify($1, '')", CHANNEL)
        async with asyncio.timeout(NOTIFY_S):
            await heard.wait()
        return ok("listen", f"a wake-up takes {duration(time.monotonic() - began_s)}")
    except TimeoutError:
        verdict: Callable[[str, str, str], Verdict] = warn if split_url(database.url)[1] else fail
        hint = "connect past the pooler; until then changes are found by polling, seconds later"
        return verdict("listen", "wake-ups do not arrive", hint)
    finally:
        connection.terminate()


async def _clock(database: Database) -> Verdict:
    before_s = time.time()
    theirs_s = float(await database.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8"))
    after_s = time.time()
    apart_s = theirs_s - (before_s + after_s) / 2
    detail = f"the database is {abs(apart_s):.3f} s {'ahead' if apart_s > 0 else 'behind'}"
    if abs(apart_s) > CLOCK_WARN_S + (after_s - before_s):
        return warn("clock", detail, "set both by NTP: times that people read are off")
    return ok("clock", detail)


async def _removals(database: Database) -> list[Verdict]:
    """What deleted datasources have left in sinks and nobody could remove yet."""
    hint = "it is tried again for a week: bring the sink, its secret or the right on its tables back"
    return [
        warn("removals", f"{one.name}: {counted(one.streams, 'stream')} left something in its sink: {one.reason}", hint)
        for one in await Removals(database).waiting()
        if one.reason
    ]


async def _rotation(database: Database, settings: Settings) -> Verdict:
    """Whether an older master key is still needed for the dead letters that sinks keep."""
    left = await Letters(database, keys.keyring_of(settings)[0]).left_to_rewrap()
    if not left:
        return ok("rotation", "dead letters in sinks need no older master key")
    hint = "keep that key, and run their datasources: runs rewrap them"
    return warn("rotation", f"{counted(left, 'dead letter')} in sinks still under another master key", hint)


async def _nodes(database: Database) -> Verdict:
    """A node that lives has beaten again by the second look."""
    nodes = Nodes(database)
    before = {row.node: row.beat for row in (await nodes.observe())[0]}
    if not before:
        return warn("nodes", "none", "headgate up starts one")
    await asyncio.sleep(2 * BEAT_S + 0.5)
    silent = [row.node for row in (await nodes.observe())[0] if before.get(row.node) == row.beat]
    if silent:
        names = {row.id: row.name for row in await nodes.all()}
        listed = ", ".join(sorted(str(names.get(node, node)) for node in silent))
        return warn("nodes", f"{len(silent)} of {len(before)} silent: {listed}", "the next node takes their streams")
    return ok("nodes", f"{counted(len(before), 'node')} beating")
