"""`headgate ds`: look at datasources, and start, stop or delete them. `drafts` and `history` add the rest."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.call import Call, Name, Yes, command, confirm, datasource, noun
from headgate.cli.client import Unreachable
from headgate.cli.failures import code_of, report
from headgate.cli.output import DASH, ago, one_line, pairs, table, to_yaml, visible
from headgate.errors import HeadgateError

app = noun("Datasources: see what they do, edit, publish, start and stop them.")

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="One or more datasources.")]

_DONE = {"start": "started", "stop": "stopped", "restart": "restarted", "reload": "reloaded"}


@command(app, "list")
def list_(call: Call) -> None:
    """All datasources and how they are."""
    call.show(call.node.get("/api/datasources"), _overview)


@command(app, "show")
def show(call: Call, name: Name) -> None:
    """One datasource: state, versions, and its document."""
    call.show(call.node.get(datasource(name)), _page)


@command(app, "start")
def start(call: Call, names: Names) -> None:
    """Start, and end a quarantine. Starting what runs changes nothing."""
    _act(call, "start", names)


@command(app, "stop")
def stop(call: Call, names: Names) -> None:
    """Stop gracefully; the position is kept."""
    _act(call, "stop", names)


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
    asked = {"from": source, "table": table, "workers": workers, "chunk_rows": chunk_rows, "rate": rate}
    body = {name: value for name, value in asked.items() if value is not None}
    answer = call.node.post(f"{datasource(name)}/backfill", body)
    call.say(answer, f"backfill {answer['dump'][:13]} of {name} has begun: headgate dumps show {answer['dump'][:13]}")


@command(app, "delete")
def delete(call: Call, name: Name, yes: Yes = False) -> None:
    """Delete a datasource, its versions and its position."""
    path = datasource(name)
    confirm(f"Delete datasource {name!r} with its versions and its position?", yes=yes)
    call.node.delete(path)
    call.say({"name": name, "action": "delete"}, f"deleted {name}")


def explain(call: Call, name: Annotated[str, typer.Argument(metavar="DATASOURCE", help="The datasource.")]) -> None:
    """Why a datasource is not moving, or that it is, in plain sentences."""
    found = call.node.get(datasource(name, "explain"))
    call.show(found, lambda found: "\n".join([f"{found['name']}: {found['health']}", *map(_sentence, found["lines"])]))


def _act(call: Call, action: str, names: list[str]) -> None:
    """Do it to each. One that fails does not keep the others from being done."""
    done, failed = [], 0
    for name in names:
        try:
            done.append(call.node.post(datasource(name, action)))
        except Unreachable:
            raise
        except HeadgateError as error:
            report(error)
            failed = failed or code_of(error)
    if done or call.as_json:
        call.say({"items": done}, "\n".join(f"{_DONE[action]} {one['name']}" for one in done))
    if failed:
        raise typer.Exit(failed)


# How it looks.


def _overview(found: dict[str, Any]) -> str:
    items = found["items"]
    rows = [
        (
            one["name"],
            one["health"],
            f"{one.get('metrics', {}).get('records_out', 0):,}",
            _version(one),
            f"{one.get('source_type') or '?'} → {one.get('sink_type') or '?'}" if one["published_version"] else DASH,
        )
        for one in items
    ]
    heads = ("NAME", "HEALTH", "WRITTEN", "VERSION", "FLOW")
    text = table(heads, rows, empty="no datasources yet (headgate ds create NAME --file FILE)", right=("WRITTEN",))
    return "\n".join([text, *(line for one in items if (line := _trouble(one)))])


def _version(one: dict[str, Any]) -> str:
    """`3`; and what is not as usual: another one runs, it was rejected, there is a draft."""
    published, running = one["published_version"], one["running_version"]
    words = [str(published) if published else "none"]
    if one.get("published_status") == "rejected":
        words.append("rejected")
    if running and running != published:
        words.append(f"{running} runs")
    if one["has_draft"]:
        words.append("draft")
    return ", ".join(words)


def _trouble(one: dict[str, Any]) -> str:
    if one["health"] not in ("error", "degraded"):
        return ""
    error = one.get("error")
    rejected = f"version {one['published_version']} rejected: {one.get('reason')}"
    told = rejected if one.get("published_status") == "rejected" else None
    reason = (
        one.get("quarantine") or told or (f"{error['cause']}: {error['message']}" if error else f"{one.get('detail')}")
    )
    return one_line(f"! {one['name']}: {reason} (headgate explain {one['name']})")


def _page(one: dict[str, Any]) -> str:
    metrics, error = one.get("metrics") or {}, one.get("error")
    state = f"{one['worker_status']}, {one['detail']}" + (f", on {one['node']}" if one.get("node") else "")
    facts = pairs(
        [
            ("name", one["name"]),
            ("health", one["health"]),
            ("enabled", "yes" if one["enabled"] else "no"),
            ("state", state),
            ("error", one_line(f"{error['cause']}: {error['message']}") if error else None),
            ("quarantined", one.get("quarantine")),
            ("records", f"{metrics.get('records_in', 0):,} read, {metrics.get('records_out', 0):,} written"),
            ("version", _version(one)),
            ("published", _written(one.get("published"))),
            ("draft", _written(one.get("draft"))),
        ]
    )
    shown = one.get("published") or one.get("draft")
    document = visible(to_yaml(shown["document"])).rstrip() if shown else ""
    return "\n\n".join(part for part in (facts, document) if part)


def _written(version: dict[str, Any] | None) -> str | None:
    if version is None:
        return None
    by = f"{version['number']} by {version['author']}, {ago(version['created_at'])}, hash {version['hash']}"
    return f"{by}; {version['status']}: {version['reason']}" if version.get("reason") else by


def _sentence(line: str) -> str:
    return f"  {visible(line)}"
