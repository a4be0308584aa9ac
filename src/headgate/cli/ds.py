"""`headgate ds`: see datasources, and start, stop or delete them. `drafts`, `history` and `testing` add the rest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli import figures
from headgate.cli.call import Call, Name, Yes, command, confirm, datasource, noun
from headgate.cli.client import Unreachable
from headgate.cli.failures import code_of, report
from headgate.cli.output import CLEAR, DASH, ago, one_line, pairs, say, table, to_yaml, visible
from headgate.cli.watching import watched
from headgate.clock import unix_s
from headgate.errors import HeadgateError
from headgate.text import tries_again

if TYPE_CHECKING:
    from headgate.web.bodies.datasources import Datasource, Datasources, Summary, Version

app = noun("Datasources: see what they do, edit, publish, start and stop them.")

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="One or more datasources.")]

ALARMING = ("error", "no_node", "degraded")  # What somebody should do something about.
_DONE = {"start": "started", "stop": "stopped", "pause": "paused", "restart": "restarted", "reload": "reloaded"}


Watch = Annotated[
    bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C. With --json: one value per line.")
]


@command(app, "list")
def list_(call: Call, watch: Watch = False) -> None:
    """All datasources and how they are."""
    from headgate.web.bodies.datasources import Datasources

    if not watch:
        call.relay(call.node.get("/api/datasources", Datasources), _overview)
        return
    for found in watched(lambda: call.node.get("/api/datasources", Datasources)):
        if not call.as_json and sys.stdout.isatty():
            say(CLEAR)
        if call.as_json:
            call.line(found.sent, "")
        else:
            say(_overview(found.value))


@command(app, "show")
def show(call: Call, name: Name) -> None:
    """One datasource: state, versions, and its document."""
    from headgate.web.bodies.datasources import Datasource

    call.relay(call.node.get(datasource(name), Datasource), _page)


@command(app, "start")
def start(call: Call, names: Names) -> None:
    """Start, and end a pause or a quarantine. Starting what runs changes nothing."""
    _act(call, "start", names)


@command(app, "stop")
def stop(call: Call, names: Names) -> None:
    """Stop gracefully; the position is kept."""
    _act(call, "stop", names)


@command(app, "pause")
def pause(call: Call, names: Names) -> None:
    """Stop reading, and go on accepting: webhooks wait in the inbox. A start ends it."""
    _act(call, "pause", names)


@command(app, "restart")
def restart(call: Call, names: Names) -> None:
    """Restart; a quarantine ends, a rejected version gets another chance."""
    _act(call, "restart", names)


@command(app, "reload")
def reload(call: Call, names: Names) -> None:
    """Have all nodes read the configuration now."""
    _act(call, "reload", names)


@command(app, "backfill")
def backfill(
    call: Call,
    name: Name,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="Where the records are. Default: the source's history.")
    ] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="TABLE", help="Which table of it.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many chunks at a time.")] = 2,
    chunk_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of a chunk. Default: about three seconds' worth.")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Rows (5000) or bytes (20MB) in a second.")] = None,
) -> None:
    """Send old records through the mapping into the sink while the live stream runs; existing keys stay."""
    from headgate.web.bodies.datasources import BackfillBegun

    asked = {"from": source, "table": table, "workers": workers, "chunk_rows": chunk_rows, "rate": rate}
    body = {name: value for name, value in asked.items() if value is not None}
    answer = call.node.post(datasource(name, "backfill"), BackfillBegun, body)
    dump = answer.value.dump[:13]
    call.say(answer.sent, f"backfill {dump} of {name} has begun: headgate dumps show {dump}")


@command(app, "delete")
def delete(call: Call, name: Name, yes: Yes = False) -> None:
    """Delete a datasource, its versions and its position; says first what would be lost with it."""
    from headgate.core.stakes import losses
    from headgate.web.bodies.datasources import Deletion

    stake = call.node.get(datasource(name, "deletion"), Deletion).value
    lost = losses(stake.payloads, stake.letters, stake.dumps)
    at_stake = f" These are lost: {', '.join(lost)}." if lost else ""
    confirm(f"Delete datasource {name!r} with its versions and its position?{at_stake}", yes=yes)
    call.node.delete(datasource(name), yes=True)
    counts = {"payloads": stake.payloads, "letters": stake.letters, "dumps": stake.dumps}
    said = f"deleted {name} ({', '.join(lost)})" if lost else f"deleted {name}"
    call.say({"name": name, "action": "delete", **counts}, said)


def explain(call: Call, name: Annotated[str, typer.Argument(metavar="DATASOURCE", help="The datasource.")]) -> None:
    """Why a datasource is not moving, or that it is, in plain sentences."""
    from headgate.web.bodies.datasources import Explanation

    found = call.node.get(datasource(name, "explain"), Explanation)
    call.relay(found, lambda found: "\n".join([f"{found.name}: {found.health}", *map(_sentence, found.lines)]))


def _act(call: Call, action: str, names: list[str]) -> None:
    """Do it to each. One that fails does not keep the others from being done."""
    from headgate.web.bodies.datasources import Done

    done, failed = [], 0
    for name in names:
        try:
            done.append(call.node.post(datasource(name, action), Done))
        except Unreachable:
            raise
        except HeadgateError as error:
            report(error)
            failed = failed or code_of(error)
    if done or call.as_json:
        said = "\n".join(f"{_DONE[action]} {one.value.name}" for one in done)
        call.say({"items": [one.sent for one in done]}, said)
    if failed:
        raise typer.Exit(failed)


# How it looks.


def _overview(found: Datasources) -> str:
    items = found.items
    rows = [
        (
            one.name,
            one.health,
            f"{one.metrics.records_written:,}",
            f"{one.metrics.records_dead_lettered:,}",
            _version(one),
            f"{one.source_type or '?'} → {one.sink_type or '?'}" if one.published_version else DASH,
        )
        for one in items
    ]
    heads = ("NAME", "HEALTH", "WRITTEN", "DEAD", "VERSION", "FLOW")
    empty = "no datasources yet (headgate ds create NAME --file FILE)"
    text = table(heads, rows, empty=empty, right=("WRITTEN", "DEAD"))
    reasons = sorted((one for one in items if one.why), key=lambda one: one.health not in ALARMING)
    return "\n".join([text, *(one_line(f"! {line}") for line in found.notices), *map(_reason, reasons)])


def _version(one: Summary) -> str:
    """`3`; and what is not as usual: another one runs, it was rejected, there is a draft."""
    published, running = one.published_version, one.running_version
    words = [str(published) if published else "none"]
    if one.published_status == "rejected":
        words.append("rejected")
    if running and running != published:
        words.append(f"{running} runs")
    if one.has_draft:
        words.append("draft")
    return ", ".join(words)


def _reason(one: Summary) -> str:
    """Why it is not `ok`, and how to know more where somebody should."""
    again = ""
    if one.error is not None and (at_s := one.error.next_try_at_s) is not None:
        again = f"; {tries_again(at_s - unix_s(), awaits_return=one.error.awaits_return)}"
    if one.health in ALARMING:
        return one_line(f"! {one.name}: {one.why}{again} (headgate explain {one.name})")
    return one_line(f"  {one.name}: {one.why}")


def _page(one: Datasource) -> str:
    error = one.error
    state = f"{one.worker_status}, {one.detail}" + (f", on {one.node}" if one.node else "")
    facts = pairs(
        [
            ("name", one.name),
            ("health", f"{one.health}: {one_line(one.why)}" if one.why else one.health),
            ("enabled", "no" if not one.enabled else "yes, paused" if one.paused else "yes"),
            ("state", state),
            ("error", one_line(f"{error.cause}: {error.message}") if error else None),
            ("quarantined", one.quarantine),
            *figures.lines(one.metrics),
            ("letters", figures.letters(one.letters)),
            ("version", _version(one)),
            ("published", _written(one.published)),
            ("draft", _written(one.draft)),
        ]
    )
    shown = one.published or one.draft
    document = visible(to_yaml(shown.document)).rstrip() if shown else ""
    return "\n\n".join(part for part in (facts, document) if part)


def _written(version: Version | None) -> str | None:
    if version is None:
        return None
    by = f"{version.number} by {version.author}, {ago(version.created_at)}, hash {version.hash}"
    return f"{by}; {version.status}: {version.reason}" if version.reason else by


def _sentence(line: str) -> str:
    return f"  {visible(line)}"
