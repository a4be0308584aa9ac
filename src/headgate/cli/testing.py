"""`headgate ds test`: run a version once, apart from the node, and see what would become of each record."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headgate.cli import documents
from headgate.cli.call import Call, Name, command, datasource
from headgate.cli.documents import STDIN, DocumentFile
from headgate.cli.ds import app
from headgate.cli.output import one_line, short, table
from headgate.errors import HeadgateError, NotFound
from headgate.text import counted, duration, size

if TYPE_CHECKING:
    from headgate.web.bodies.harness import Tested, TestRecord, TestResult

SHOWN = 50  # Records of a table for people.
TROUBLE = 1  # The exit code of a test that did not come to its end.

Version = Annotated[int | None, typer.Option("--version", min=1, metavar="N", help="A version instead of the draft.")]
Payload = Annotated[
    str | None,
    typer.Option("--payload", metavar="FILE", help="JSON, a JSON array, JSON Lines, or one body; - is stdin."),
]
Fetch = Annotated[
    int | None, typer.Option("--fetch", min=1, max=1000, metavar="N", help="Read as many records from the source.")
]
Inbox = Annotated[int | None, typer.Option("--inbox", min=1, max=1000, metavar="N", help="The last webhooks.")]
Letter = Annotated[str | None, typer.Option("--dead-letter", metavar="ID", help="The payload of a dead letter.")]
FixtureName = Annotated[str | None, typer.Option("--fixture", metavar="FIXTURE", help="The inputs of a fixture.")]
Sink = Annotated[
    Literal["none", "rollback"],
    typer.Option("--sink", help="rollback: the sink writes, and takes everything back."),
]
Save = Annotated[
    str | None, typer.Option("--save", metavar="FIXTURE", help="Keep inputs and results as a fixture of this name.")
]
Timeout = Annotated[
    float | None, typer.Option("--timeout", min=0.1, max=60.0, metavar="S", help="How long it may take, in seconds.")
]


@command(app, "test")
def try_version(
    call: Call,
    name: Name,
    version: Version = None,
    file: DocumentFile = None,
    payload: Payload = None,
    fetch: Fetch = None,
    inbox: Inbox = None,
    dead_letter: Letter = None,
    fixture: FixtureName = None,
    sink: Sink = "none",
    save: Save = None,
    timeout: Timeout = None,
) -> None:
    """Run the draft once, apart from the node: what would become of each record? Nothing is changed."""
    from headgate.web.bodies.harness import Tested

    given: dict[str, Any] = {
        "version": version,
        "document": None if file is None else documents.read_one(file, name),
        "fetch": fetch,
        "inbox": inbox,
        "dead_letter": dead_letter,
        "fixture": fixture,
        "sink": sink,
        "save": save,
        "timeout_s": timeout,
        **({} if payload is None else _payload(payload)),
    }
    body = {key: value for key, value in given.items() if value is not None}
    reply = call.node.post(datasource(name, "test"), Tested, body)
    call.relay(reply, _page)
    if reply.value.trouble:
        raise typer.Exit(TROUBLE)


def _payload(file: str) -> dict[str, str]:
    """As text if it is, so that what is sent can be read."""
    try:
        data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except FileNotFoundError:
        raise NotFound(f"file {file} does not exist") from None
    except OSError as error:
        raise HeadgateError(f"{file} cannot be read: {error.strerror}") from None
    try:
        return {"payload": data.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(data).decode()}


# How it looks.


def _page(found: Tested) -> str:
    parts = [_records(found)]
    parts += [_changes(found), _warnings(found), _logs(found), found.output.rstrip()]
    parts.append(_summary(found))
    return "\n\n".join(part for part in parts if part)


def _records(found: Tested) -> str:
    rows = [
        (number, result.outcome.replace("_", " "), _said(result), short(one.before))
        for number, one in enumerate(found.records[:SHOWN])
        for result in one.results
    ]
    more = len(found.records) - SHOWN
    text = table(("#", "OUTCOME", "AFTER", "BEFORE"), rows, empty="", right=("#",))
    return f"{text}\n… and {counted(more, 'record')} more (--json has all)" if more > 0 else text


def _said(result: TestResult) -> str:
    if result.outcome == "dead_lettered":
        return f"{result.stage}: " + (f"{result.field}: {result.reason}" if result.field else f"{result.reason}")
    return ("deletes " if result.is_delete else "") + short(result.after)


def _changes(found: Tested) -> str:
    lines = [line for number, one in enumerate(found.records[:SHOWN]) for line in _changed(number, one)]
    if not lines:
        return ""
    return "\n".join([f"next to version {found.compared_with}:", *lines])


def _changed(number: int, one: TestRecord) -> list[str]:
    return [
        one_line(f"  ~ {number}.{change.place}: {short(change.before)} → {short(change.after)}")
        for change in one.changes
    ]


def _warnings(found: Tested) -> str:
    return "\n".join(one_line(f"! {one.place}: {one.message}") for one in found.warnings)


def _logs(found: Tested) -> str:
    lines = []
    for one in found.logs:
        fields = " ".join(f"{key}={value}" for key, value in one.fields.items())
        lines.append(one_line(f"{one.level:<7} {one.text} {fields}"))
    return "\n".join(lines)


def _summary(found: Tested) -> str:
    figures = found.figures
    what = f"version {found.version}" if found.version else "the document"
    counts = f"{found.written} written, {found.filtered} filtered, {found.dead_lettered} dead-lettered"
    took = f"{duration(figures.took_ms / 1000)}, {figures.per_record_us:.0f} µs a record, {size(figures.bytes_in)}"
    lines = [f"{what} of {found.name}: {took}", f"{counted(found.read, 'record')} read, {counts}"]
    if found.is_cut:
        lines.append("there was more than can be shown: test with fewer records")
    if found.saved:
        lines.append(f"kept as fixture {found.saved} (headgate fixtures show {found.name} {found.saved})")
    if found.trouble:
        lines.append(one_line(f"it did not end: {found.trouble}" + (f" ({found.hint})" if found.hint else "")))
    return "\n".join(lines)
