"""`headgate plan|apply|import|export|schema`: all datasources as one file.

`import` and `export` also work without a node, straight on the database: with `--database`, or when no node answers and
`HEADGATE_DATABASE` is set.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from headgate.cli import documents
from headgate.cli.call import Call, Yes, confirm, insist
from headgate.cli.client import Reply, Unreachable, read
from headgate.cli.documents import STDIN, File
from headgate.cli.output import changes, complain, say, to_json
from headgate.errors import HeadgateError
from headgate.text import counted

if TYPE_CHECKING:
    from headgate.web.bodies.datasources import Changes

T = TypeVar("T")

Prune = Annotated[bool, typer.Option("--prune", help="Delete the datasources that the file does not have.")]
NoConnect = Annotated[bool, typer.Option("--no-connect", help="Do not connect to the sources and sinks that are new.")]
Accept = Annotated[
    bool, typer.Option("--accept", help="Even if it changes what fixtures expect; they expect the new results then.")
]
Database = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="Work straight on this database. Or: HEADGATE_DATABASE."),
]

_SIGNS = {"create": "+", "update": "~", "enable": "~", "disable": "~", "delete": "-"}


def plan(call: Call, file: File, prune: Prune = False) -> None:
    """What applying a file would change. Nothing is changed."""
    from headgate.web.bodies.datasources import Changes

    call.relay(call.node.post("/api/plan", Changes, _body(file), prune=prune), lambda found: _render(found, "to "))


def apply(
    call: Call,
    file: File,
    prune: Prune = False,
    yes: Yes = False,
    no_connect: NoConnect = False,
    accept: Accept = False,
) -> None:
    """Make the datasources what the file says, all of them or none. What is new is connected to first."""
    from headgate.web.bodies.datasources import Changes

    body = _body(file)
    if prune:
        planned = call.node.post("/api/plan", Changes, body, prune=True).value.changes
        doomed = [change.name for change in planned if change.action == "delete"]
        if doomed:
            confirm(f"Delete {counted(len(doomed), 'datasource')} ({', '.join(doomed)})?", yes=yes)
    how = {"connect": not no_connect, "accept": accept or None}
    done = insist(
        lambda yes: call.node.post("/api/apply", Changes, body, prune=prune, yes=yes or None, **how),
        "would_lose",
        "Delete them all the same?",
        yes=yes,
    )
    call.relay(done, _render)


def import_(
    call: Call, file: File, database: Database = None, no_connect: NoConnect = False, accept: Accept = False
) -> None:
    """Create or update every datasource of a file; delete none. What is new is connected to first."""
    from headgate.web.bodies.datasources import Changes

    body = _body(file)

    def straight(url: str) -> Reply[Changes]:
        from headgate.cli import direct

        done = direct.apply(url, body["yaml"], body["file"], connect=not no_connect, accept=accept)
        return read(done, Changes, url)

    how = {"connect": not no_connect, "accept": accept or None}
    call.relay(_either(lambda: call.node.post("/api/apply", Changes, body, **how), straight, database), _render)


def export(
    call: Call,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="Where to write; - is stdout.")] = STDIN,
    database: Database = None,
    no_fixtures: Annotated[
        bool, typer.Option("--no-fixtures", help="Without fixtures, which hold records in plain text.")
    ] = False,
) -> None:
    """Write every published datasource as YAML, or with --json as JSON. Secrets are there by name only, the records of
    fixtures in plain text: only an operator gets those."""

    def straight(url: str) -> str:
        from headgate.cli import direct

        return direct.export(url, fixtures=not no_fixtures)

    fixtures = None if no_fixtures else True
    text = _either(lambda: call.node.get_text("/api/export", fixtures=fixtures), straight, database)
    if "\n    fixtures:\n" in text:
        complain("headgate: the export has fixtures, with records in plain text (--no-fixtures leaves them out)")
    if call.as_json:
        text = to_json(documents.parse(text, "the export"))
    if file == STDIN:
        say(text)
        return
    try:
        Path(file).write_text(text if text.endswith("\n") else f"{text}\n", "utf-8")
    except OSError as error:
        raise HeadgateError(f"{file} cannot be written: {error.strerror}") from None
    complain(f"wrote {file}")


def schema(
    call: Call,
    one: Annotated[
        bool, typer.Option("--one", help="Of one datasource without its name, not of a whole file.")
    ] = False,
) -> None:
    """Print the JSON Schema of a file of datasources: editors complete and check the file with it. Asks no node."""
    from headgate.datasources.schema import document_schema, file_schema

    del call  # It is JSON with and without --json.
    say(to_json(document_schema() if one else file_schema()))


def _either(ask: Callable[[], T], straight: Callable[[str], T], database: str | None) -> T:
    """Straight if that was said; else ask a node; straight again if none answers and we know the database."""
    if database is not None:
        return straight(database)
    try:
        return ask()
    except Unreachable:
        known = os.environ.get("HEADGATE_DATABASE")
        if not known:
            raise
        return straight(known)


def _body(file: str) -> dict[str, str]:
    return {"yaml": documents.read_text(file), "file": "stdin" if file == STDIN else file}


def _render(found: Changes, tense: str = "") -> str:
    """What changes, and how much of it; what stays is only counted."""
    lines = []
    for change in found.changes:
        if change.action != "keep":
            lines.append(f"{_SIGNS.get(change.action, '~')} {change.action} {change.name}")
        if change.action in ("update", "enable", "disable"):
            lines += changes(change.changes, "    ")
    counts = Counter(change.action for change in found.changes)
    kept = counts.pop("keep", 0)
    if not counts:
        return f"nothing {tense or 'had to '}change; {counted(kept, 'datasource')} unchanged"
    verbs = [f"{n} {tense}{action}" if tense else f"{n} {_past(action)}" for action, n in counts.items()]
    return "\n".join([*lines, ", ".join([*verbs, f"{kept} unchanged"])])


def _past(action: str) -> str:
    return f"{action}d" if action.endswith("e") else f"{action}ed"
