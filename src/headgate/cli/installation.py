"""`headgate installation`: which one this database is, and what to do with one that went back in time or is a copy.

These commands go straight to the database, because a node that waits for them can answer nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headgate.cli.call import Call, Yes, command, confirm, noun
from headgate.cli.output import pairs

if TYPE_CHECKING:
    from headgate.store.database import Session
    from headgate.store.lineage import Witness

app = noun("The installation: which one this database is, and in which era.")

Database = Annotated[str | None, typer.Option("--database", help="A PostgreSQL URL. Absent: the embedded one.")]
Home = Annotated[Path | None, typer.Option("--home", help="HEADGATE_HOME.")]

T = TypeVar("T")


@command(app, "show", asks_node=False)
def show(call: Call, database: Database = None, home: Home = None) -> None:
    """Show the installation's id and era, and whether its database is the one that it was."""
    call.show(_with(database, home, _look), _rendered)


@command(app, "adopt", asks_node=False)
def adopt(
    call: Call,
    database: Database = None,
    home: Home = None,
    era: Annotated[
        int | None, typer.Option("--era", min=1, help="Begin this era at least; a sink that is ahead says which.")
    ] = None,
    yes: Yes = False,
) -> None:
    """This database is the installation: begin a new era, above all that its sinks have seen.

    For a database that was restored from a backup, or taken over by a standby while no node was there to see it. The
    nodes of the time that was lost are fenced. Never for a copy: it would take the original's sinks away.
    """
    confirm("Is this the installation itself, and not a copy of one that still runs?", yes=yes)

    async def act(session: Session, witness: Witness) -> dict[str, Any]:
        from headgate.cli.direct import actor
        from headgate.store import lineage

        done = await lineage.adopt(session, witness, era, actor("adopt"))
        return {"installation": str(done.installation), "era": done.era, "lineage": done.lineage}

    done = _with(database, home, act)
    call.say(done, f"era {done['era']} of installation {done['installation']} begins; its nodes go on by themselves")


@command(app, "fork", asks_node=False)
def fork(call: Call, database: Database = None, home: Home = None, yes: Yes = False) -> None:
    """This database is a copy: make it another installation, in which nothing is enabled.

    The original's sinks know nothing of it. Look at each sink before you start a datasource: it still writes to where
    the original writes.
    """
    confirm("Make this database another installation, with every datasource stopped?", yes=yes)

    async def act(session: Session, witness: Witness) -> dict[str, Any]:
        from headgate.cli.direct import actor
        from headgate.store import lineage

        before, now = await lineage.fork(session, actor("fork"))
        return {"before": str(before), "installation": str(now)}

    done = _with(database, home, act)
    call.say(done, f"this is installation {done['installation']} now; every datasource is stopped")


async def _look(session: Session, witness: Witness) -> dict[str, Any]:
    from headgate.core.lineage import Same, Unclaimed, judge
    from headgate.errors import Refused
    from headgate.store import lineage

    seen = await lineage.look(session)
    if seen is None:
        raise Refused("this database has no registry, or that of an older Headgate", hint="headgate up sets it up")
    known = witness.known().get(seen.kept.installation)
    finding = judge(seen.server, seen.kept, known)
    is_well = isinstance(finding, Same | Unclaimed)
    return {
        "installation": str(seen.kept.installation),
        "era": seen.kept.era,
        "server": str(seen.server.lineage),
        "registry": None if seen.kept.lineage is None else str(seen.kept.lineage),
        "known_era": None if known is None else known.era,
        "problem": None if isinstance(finding, Same | Unclaimed) else lineage.displaced(finding).message,
        "hint": None if isinstance(finding, Same | Unclaimed) else lineage.displaced(finding).hint,
        "ok": is_well,
    }


def _with(database: str | None, home: Path | None, act: Callable[[Session, Witness], Awaitable[T]]) -> T:
    from headgate.cli import direct
    from headgate.config import load
    from headgate.errors import NotFound
    from headgate.store.database import connect
    from headgate.store.lineage import Witness

    settings = load(database=database, home=home)
    if settings.database is None and not (settings.home / "postgres" / "data").exists():
        raise NotFound(f"{settings.home} has no database", hint="headgate up makes one; or --database")

    async def run(url: str) -> T:
        session = await connect(url)
        try:
            return await act(session, Witness(settings.home))
        finally:
            await session.close()

    with direct.reached(settings) as url:
        return asyncio.run(run(url))


def _rendered(found: dict[str, Any]) -> str:
    lines = {
        "installation": found["installation"],
        "era": str(found["era"]),
        "server": found["server"],
        "registry": found["registry"] or "no node has worked with it yet",
    }
    if found["problem"]:
        lines["problem"] = f"{found['problem']} ({found['hint']})"
    return pairs(lines.items())
