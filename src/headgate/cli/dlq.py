"""`headgate dlq`: records that could not be handled. Find them, understand them, mend them, have them tried again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headgate.cli.call import Call, Yes, checked, command, confirm, datasource, noun
from headgate.cli.failures import FAILED
from headgate.cli.letters import (
    OneId,
    chosen,
    edit_payload,
    follow,
    moment,
    page,
    path_of,
    rehearsed,
    table_of,
    told,
)
from headgate.errors import HeadgateError
from headgate.text import counted, size

app = noun("Dead letters: records that could not be read, mapped or written.")

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The datasource.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Datasources; without one, all.")]
TheName = Annotated[str, typer.Argument(metavar="NAME", help="The datasource.")]
Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="A letter, by the beginning of its id; repeat.")
]
Stage = Annotated[
    Literal["source", "mapping", "sink"] | None, typer.Option("--stage", help="Where they failed.", show_default=False)
]
Field = Annotated[str | None, typer.Option("--field", metavar="FIELD", help="The field that was wrong.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="A part of the reason.")]
Version = Annotated[int | None, typer.Option("--version", min=1, metavar="N", help="The version that failed.")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Tried last after this: 2h, or ISO.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Tried last before this: 2h, or ISO.")]
Outcome = Annotated[
    Literal["open", "replayed", "superseded", "discarded", "expired", "all"],
    typer.Option("--outcome", help="What became of them."),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="How many of the latest.")]
WithVersion = Annotated[
    int | None, typer.Option("--with-version", min=1, metavar="N", help="With the mapping of this version.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Also those that may be older than the row of their key.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Only say what would become of them.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until they have been replayed.")]
All = Annotated[bool, typer.Option("--all", help="Every open one.")]
Replay = Annotated[bool, typer.Option("--replay", help="Have it replayed at once.")]
File = Annotated[str | None, typer.Option("--file", "-f", metavar="FILE", help="The payload as JSON; - is stdin.")]
Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Where to; default: stdout.")]


@command(app, "list")
def list_(
    call: Call,
    names: Names = None,
    stage: Stage = None,
    field: Field = None,
    reason: Reason = None,
    version: Version = None,
    since: Since = None,
    until: Until = None,
    outcome: Outcome = "open",
    limit: Limit = 100,
) -> None:
    """Where records failed and why, the latest first. Nothing of the records themselves."""
    from headgate.web.bodies.letters import LetterList

    which = {"stage": stage, "field": field, "reason": reason, "version": version}
    times = {"since": moment("--since", since), "until": moment("--until", until)}
    named = [checked(name, "datasource", "headgate ds list") for name in names or []]
    found = call.node.get(
        "/api/dead-letters", LetterList, **which, **times, outcome=outcome, limit=limit, datasource=named or None
    )
    call.relay(found, lambda found: table_of(found, outcome, named))


@command(app, "show")
def show(call: Call, id: OneId) -> None:
    """One letter, with its record."""
    from headgate.web.bodies.letters import LetterDetails

    call.relay(call.node.get(path_of(id), LetterDetails), page)


@command(app, "replay")
def replay(
    call: Call,
    name: Name = None,
    ids: Ids = None,
    stage: Stage = None,
    field: Field = None,
    reason: Reason = None,
    version: Version = None,
    since: Since = None,
    until: Until = None,
    with_version: WithVersion = None,
    overwrite: Overwrite = False,
    dry_run: Dry = False,
    no_wait: NoWait = False,
) -> None:
    """Have letters tried again: those that are named, those that fit, or all of a datasource."""
    name, body = chosen(call, name, ids, stage, field, reason, version, since, until)
    body |= {"overwrite": overwrite, **({} if with_version is None else {"with_version": with_version})}
    if dry_run:
        _rehearse(call, name, body)
    else:
        _replay(call, name, body, waits=not no_wait)


@command(app, "discard")
def discard(
    call: Call,
    name: Name = None,
    ids: Ids = None,
    stage: Stage = None,
    field: Field = None,
    reason: Reason = None,
    version: Version = None,
    since: Since = None,
    until: Until = None,
    all_: All = False,
    yes: Yes = False,
) -> None:
    """Give letters up. Their records are gone at once."""
    from headgate.web.bodies.letters import Discarded

    name, body = chosen(call, name, ids, stage, field, reason, version, since, until)
    if not body and not all_:
        raise typer.BadParameter("say which: --id, --stage, --field, --reason, --version, --since, --until or --all")
    which = "these" if body else "all"
    confirm(f"Discard {which} letters of {name}? Their records cannot be brought back.", yes=yes)
    done = call.node.post(datasource(name, "dead-letters", "discard"), Discarded, {**body, "all": all_})
    call.say(done.sent, f"{counted(done.value.letters, 'letter')} of {name} discarded")


@command(app, "edit")
def edit(
    call: Call,
    id: OneId,
    file: File = None,
    replay: Replay = False,
    overwrite: Overwrite = False,
    no_wait: NoWait = False,
) -> None:
    """Mend the record of a letter, from a file or in $EDITOR, and have it replayed if you say so."""
    from headgate.web.bodies.letters import LetterDetails

    found = call.node.get(path_of(id), LetterDetails)
    written = edit_payload(call, found.value, file)
    if written is None:
        call.say(found.sent, "nothing changed")
        return
    one = written.value
    if not replay and file is None and not call.as_json and sys.stdin.isatty():
        replay = typer.confirm(f"Replay letter {str(one.id)[:8]} now?", err=True)
    if not replay:
        hint = f"headgate dlq replay --id {str(one.id)[:8]}"
        call.say(written.sent, f"letter {str(one.id)[:8]} of {one.datasource} was edited ({hint})")
        return
    _replay(call, one.datasource, {"ids": [str(one.id)], "overwrite": overwrite}, waits=not no_wait)


@command(app, "export")
def export(
    call: Call,
    name: TheName,
    stage: Stage = None,
    field: Field = None,
    reason: Reason = None,
    version: Version = None,
    since: Since = None,
    until: Until = None,
    outcome: Outcome = "open",
    out: Out = None,
) -> None:
    """Letters with their records, as JSON Lines."""
    which = {"stage": stage, "field": field, "reason": reason, "version": version, "outcome": outcome}
    times = {"since": moment("--since", since), "until": moment("--until", until)}
    path = datasource(name, "dead-letters", "export")
    if out is None:
        call.node.download(path, typer.get_binary_stream("stdout"), **which, **times)
        return
    try:
        with Path(out).open("wb") as file:
            written = call.node.download(path, file, **which, **times)
    except OSError as error:
        raise HeadgateError(f"{out} cannot be written: {error.strerror}") from None
    call.say({"file": out, "bytes": written}, f"wrote {size(written)} to {out}")


def _rehearse(call: Call, name: str, body: dict[str, Any]) -> None:
    from headgate.web.bodies.letters import Replaying

    done = call.node.post(datasource(name, "dead-letters", "replay"), Replaying, {**body, "dry_run": True})
    call.relay(done, rehearsed)
    if done.value.dry_run is not None and done.value.dry_run.trouble:
        raise typer.Exit(FAILED)


def _replay(call: Call, name: str, body: dict[str, Any], *, waits: bool) -> None:
    from headgate.web.bodies.letters import Replaying

    done = call.node.post(datasource(name, "dead-letters", "replay"), Replaying, body)
    if not waits or done.value.waits is not None or not done.value.letters:
        call.say(done.sent, told(done.value))
        return
    ended = follow(call, done.value)
    call.say({**done.sent, "after": ended.sent}, told(done.value, ended.value))
