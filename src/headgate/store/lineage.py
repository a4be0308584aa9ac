"""Whether this registry is the one that it was: asked of every new session, and settled in one transaction.

`core.lineage` has the theory and decides. A session of a registry that is not at home raises `Displaced`, which to
every loop is a database that is away: nothing is granted, accepted or written until somebody has settled it.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import msgspec

from headgate import __version__
from headgate.core import lineage
from headgate.core.lineage import (
    Displacement,
    Kept,
    Known,
    Lineage,
    Outdated,
    Same,
    Server,
    Stranger,
    Unclaimed,
    WentBack,
)
from headgate.errors import Displaced, Refused, StoreError
from headgate.ids import new_id
from headgate.store.database import Database, Session, roll_back, sql, store_errors

FILE = "witness.json"
GHOST = "before the failover"  # The name of a node that stands for those of the time that was lost.
SETTLE_MS = 60_000  # A hundred thousand streams are freed in one transaction.
SETTLE = "headgate installation adopt: this is the installation; headgate installation fork: this is a copy of it"


class Witness:
    """What this process, and the home folder that it shares with others, remember of installations."""

    def __init__(self, home: Path | None = None) -> None:
        self._file = home / FILE if home is not None else None
        self._lock = threading.Lock()  # The beat has its own thread.
        self._known: dict[UUID, Known] = {}
        self.finding: Displacement | None = None  # What the last session has found, if it was not the same registry.

    async def check(self, session: Session) -> None:
        """Let a session work only if its registry is the one that it was."""
        known = self.known()  # Before the server is asked: another session may learn more meanwhile.
        seen = await look(session)
        if seen is None:
            return
        match lineage.judge(seen.server, seen.kept, known.get(seen.kept.installation)):
            case Same(known=now):
                self.saw(now)
            case Unclaimed():
                await session.execute(sql("lineage/claim"))
            case Outdated() | Stranger() | WentBack() as finding:
                self.finding = finding
                raise displaced(finding)

    def known(self) -> dict[UUID, Known]:
        """What is remembered of each installation, here or in the home."""
        with self._lock:
            self._known = _merged(self._known, self._read())
            return self._known

    def saw(self, seen: Known) -> None:
        """Remember this. Other processes of the home may have seen more of it: the better memory stays."""
        with self._lock:
            self.finding = None
            before = self._known.get(seen.installation)
            now = lineage.remember(before, seen)
            self._known = {**self._known, seen.installation: now}
            if self._file is not None and now != before:
                with suppress(OSError):  # A home that cannot be written to is no witness; this process still is.
                    self._write(self._file)

    def _read(self) -> dict[UUID, Known]:
        if self._file is None:
            return {}
        with suppress(OSError, msgspec.MsgspecError, ValueError):
            found = msgspec.json.decode(self._file.read_bytes(), type=list[_Line])
            return {line.installation: line.known() for line in found}
        return {}

    def _write(self, file: Path) -> None:
        self._known = _merged(self._known, self._read())
        lines = [_Line(one.installation, one.era, str(one.lineage), one.flushed) for one in self._known.values()]
        aside = file.with_suffix(f".{threading.get_ident()}")
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(lines)))
        aside.replace(file)


class _Line(msgspec.Struct, frozen=True):
    """One installation in the file."""

    installation: UUID
    era: int
    lineage: str
    flushed: int

    def known(self) -> Known:
        return Known(self.installation, self.era, Lineage.of(self.lineage), self.flushed)


def _merged(one: dict[UUID, Known], other: dict[UUID, Known]) -> dict[UUID, Known]:
    return one | {id: lineage.remember(one.get(id), known) for id, known in other.items()}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a session says of its server and registry."""

    server: Server
    kept: Kept


async def look(session: Session) -> Seen | None:
    """The server and the registry. None: there is no registry yet, or one from before lineages."""
    if not await session.fetchval("SELECT to_regprocedure('headgate.lineage()') IS NOT NULL"):
        return None
    row = await session.fetchrow(sql("lineage/read"))
    assert row is not None  # The registry has one row.
    if row["is_standby"]:
        raise StoreError("the database is a standby", hint="name the primary too: postgresql://…@one,two/…")
    kept = None if row["kept"] is None else Lineage.of(row["kept"])
    server = Server(Lineage.of(row["server"]), row["flushed"])
    return Seen(server, Kept(row["installation"], row["era"], kept))


def displaced(finding: Displacement) -> Displaced:
    """What people are told."""
    match finding:
        case Outdated(timeline, known_timeline):
            return Displaced(
                f"the database is on timeline {timeline}, and {known_timeline} has been seen: an old primary is back",
                hint="end it; if it is what you restored on purpose: headgate installation adopt",
            )
        case Stranger():
            return Displaced("the database went back in time, or is a copy", hint=SETTLE)
        case WentBack(era):
            return Displaced(f"the database went back in time; era {era} is about to begin", hint="wait for a node")


async def remember(database: Database, witness: Witness) -> None:
    """Look at the registry again, over a session that may have been open for long."""
    async with database.transaction() as session:
        await witness.check(session)


async def present(database: Database) -> Seen:
    """The server and the registry, as they are now."""
    async with database.transaction() as session:
        return _present(await look(session))


@dataclass(frozen=True, slots=True)
class Standbys:
    """What follows this server."""

    standbys: int
    synchronous: int
    hidden: int  # Of which this user may not see more.
    synchronous_commit: str


async def standbys(database: Database) -> Standbys:
    """What follows this server."""
    (row,) = await database.fetch(sql("lineage/standbys"))
    return Standbys(row["standbys"], row["synchronous"], row["hidden"], row["synchronous_commit"])


# Settling it.


@dataclass(frozen=True, slots=True)
class Settled:
    """A new era has begun."""

    installation: UUID
    era: int
    before: str  # The lineage that the registry was at home in.
    lineage: str


async def settle(session: Session, witness: Witness) -> Settled | None:
    """Begin a new era if this witness finds that the registry went back in time. None: it did not, or cannot tell."""
    async with _alone(session):
        known, seen = witness.known(), await look(session)
        if seen is None:
            return None
        finding = lineage.judge(seen.server, seen.kept, known.get(seen.kept.installation))
        if not isinstance(finding, WentBack):
            return None
        return await _begin_era(session, seen, finding.era, "headgate")


async def adopt(session: Session, witness: Witness, era: int | None, actor: str) -> Settled:
    """A person says that this is the installation. The era is above all that is known, and at least `era`."""
    async with _alone(session):
        seen = _present(await look(session))
        known = witness.known().get(seen.kept.installation)
        eras = [seen.kept.era + 1, *([known.era + 1] if known is not None else []), *([era] if era is not None else [])]
        if max(eras) > lineage.LAST_ERA:
            raise Refused(f"there is no era {max(eras)}", hint=f"the last one is {lineage.LAST_ERA}")
        return await _begin_era(session, seen, max(eras), actor)


async def fork(session: Session, actor: str) -> tuple[UUID, UUID]:
    """A person says that this is a copy: it becomes another installation, in which nothing is enabled."""
    from headgate.store.events import Event, append

    async with _alone(session):
        before = _present(await look(session)).kept.installation
        now = new_id()
        revision = await session.fetchval(sql("lineage/fork"), now)
        await session.execute(sql("lineage/free_streams"), 0, None)
        await session.execute(sql("lineage/end_nodes"), 1)
        await session.execute(sql("lineage/disable_all"), revision)
        await session.execute(sql("lineage/stop_all"))
        await session.execute(sql("lineage/tell_nobody"))
        payload = {"before": str(before), "installation": str(now)}
        await append(session, [Event(None, None, "installation_forked", payload, actor)])
    return before, now


@asynccontextmanager
async def _alone(session: Session) -> AsyncIterator[None]:
    """A transaction in which nobody else settles it. The second one finds what the first has decided."""
    with store_errors():
        await session.execute(f"BEGIN; SET LOCAL statement_timeout = {SETTLE_MS}; SET LOCAL lock_timeout = {SETTLE_MS}")
        try:
            await session.execute(sql("lineage/lock"))
            yield
            await session.execute("COMMIT")
        except BaseException:
            await roll_back(session)
            raise


def _present(seen: Seen | None) -> Seen:
    if seen is None:
        raise Refused("this database has no registry, or that of an older Headgate", hint="headgate up sets it up")
    return seen


async def _begin_era(session: Session, seen: Seen, era: int, actor: str) -> Settled:
    from headgate.core.lease import LEASE_S  # Not above: each command looks at the lineage, and hardly one changes it.
    from headgate.store.events import Event, append

    first = lineage.first_epoch(era)
    await session.execute(sql("lineage/begin_era"), era, first)
    ghost = new_id()
    await session.execute(sql("lineage/add_ghost"), ghost, GHOST, LEASE_S, __version__)
    await session.execute(sql("lineage/free_streams"), first, ghost)
    await session.execute(sql("lineage/end_nodes"), first)
    await session.execute(sql("lineage/raise_sequences"), first)
    found = Settled(seen.kept.installation, era, str(seen.kept.lineage or ""), str(seen.server.lineage))
    payload = {"era": era, "before": found.before, "lineage": found.lineage}
    await append(session, [Event(None, None, "registry_went_back", payload, actor)])
    return found
