"""Writes what can be read off the code: `python -m headgate.testing.reference docs/reference`.

The settings, metrics and paths are whole pages. The diagrams of a worker's life and of a consumer's statuses are put
between two markers of `docs/concepts/lifecycle.md` and `groups.md`: the states are walked through the real machines, so
a diagram cannot say what the code does not do. The same code always gives the same text.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from headgate.config import OF_TESTS, Settings
from headgate.connectors import plugins
from headgate.connectors.installed import promises_of
from headgate.core import lifecycle as machine
from headgate.core.access import ROLES
from headgate.core.figures import HEALTHS
from headgate.core.groups import machine as groups
from headgate.errors import Cause
from headgate.telemetry import metrics
from headgate.testing import roles
from headgate.testing.codes import CODES

BEGIN, END = "<!-- begin generated diagram -->", "<!-- end generated diagram -->"
BEGIN_TABLE, END_TABLE = "<!-- begin generated table -->", "<!-- end generated table -->"
BEGIN_PROMISE, END_PROMISE = "<!-- begin generated guarantee -->", "<!-- end generated guarantee -->"
NOTE = "<!-- Written by `make docs` from the code; edit the code instead. -->\n"

# What the code cannot say of itself: pages, and paths that the framework or the webhook door answers.
DESCRIBED = {
    "/": "The console; without a token, the page to sign in.",
    "/groups": "The console's page of groups. By WebSocket: the door for programs that take turns.",
    "/dumps": "The console's page of dumps.",
    "/dumps/{id}": "The console's page of one dump, with the map of its chunks; and what its buttons send.",
    "/letters": "The console's page of dead letters, for operators; and what its buttons send.",
    "/letters/{id}": "The console's page of one dead letter, with its record; and what its buttons send.",
    "/groups/one": "The console's page of one group, named by `stream` and `name`.",
    "/login": "Sign in to the console: a form of its own page with `token`, or the `code` of a link.",
    "/logout": "Sign out of the console: ends the session. The token stays valid.",
    "/static/{name}": "Styles and scripts of the console.",
    "/api/schema": "OpenAPI, as JSON.",
}
HOOKS = ("/hooks/{datasource}", "POST", "sender, or a signature", "Hand over a payload; 202 once it is durable.")

DEPTH = 6  # Steps of the walk. Deeper walks find no other transition; a test looks.


def pages(folder: Path) -> dict[Path, str]:
    """The pages as they should be."""
    concepts = folder.parent / "concepts"
    connectors = {folder / "connectors" / f"{one.name}.md": one for one in plugins.all()}
    life, group = concepts / "lifecycle.md", concepts / "groups.md"
    return {
        folder / "settings.md": settings_page(),
        folder / "metrics.md": metrics_page(),
        folder / "http.md": http_page(),
        folder / "roles.md": with_matrix((folder / "roles.md").read_text("utf-8")),
        life: with_diagram(life.read_text("utf-8"), diagram()),
        group: with_diagram(group.read_text("utf-8"), group_diagram()),
        **{
            page: with_promises(page.read_text("utf-8"), promises_of(one))
            for page, one in connectors.items()
            if page.exists() and promises_of(one)
        },
    }


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


# Settings.


def settings_page() -> str:
    """Every setting, with its default."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = "none" if field.default in (None, "") else f"`{str(field.default).lower()}`"
        rows.append((f"`HEADGATE_{name.upper()}`", f"`{name}`", default, field.description or ""))
    return (
        "# Settings\n\n" + NOTE + "\nA flag of `headgate up` wins over the environment, and the environment over "
        "`headgate.toml` in the working directory. In the file a setting has its short name, as in `port = 8470`.\n\n"
        + _table(("environment", "in `headgate.toml`", "default", "meaning"), rows)
        + "\nThe commands also read `HEADGATE_URL`, `HEADGATE_TOKEN` and `HEADGATE_CA`; see [Commands](cli.md).\n\n"
        "A variable that begins with `HEADGATE_`, or a key of the file, that is none of these is an error: it names "
        f"the setting that may have been meant, and nothing starts. Variables that begin with `{OF_TESTS}` are left "
        "alone.\n"
    )


# Metrics.


def metrics_page() -> str:
    """Every metric, as Prometheus reads it."""
    stream = "`datasource`, `stream`"
    labels = dict.fromkeys(metrics.GAUGES, "none") | dict.fromkeys(metrics.OF_STREAMS, stream)
    labels |= {"headgate_worker_status": f"{stream}, `status`", "headgate_group_consumers": "`connectivity`"}
    labels |= {"headgate_datasource_health": "`datasource`, `status`", "headgate_version_rejected": "`datasource`"}
    labels["headgate_dumps"] = "`status`"
    counters = (*metrics.TOTALS.values(), *metrics.COUNTERS.values())
    rows = [(f"`{name}_total`", "counter", stream, text) for name, text in counters]
    rows += [(f"`{name}`", "gauge", labels[name], text) for name, text in metrics.GAUGES.items()]
    rows.append((f"`{metrics.WEBHOOKS[0]}_total`", "counter", "`datasource`, `answer`", metrics.WEBHOOKS[1]))
    rows.append((f"`{metrics.PUSH_RECORDS[0]}_total`", "counter", "none", metrics.PUSH_RECORDS[1]))
    rows.append((f"`{metrics.PUSH_ENDS[0]}_total`", "counter", "`code`", metrics.PUSH_ENDS[1]))
    rows.append((f"`{metrics.GROUP_ENDS[0]}_total`", "counter", "`code`", metrics.GROUP_ENDS[1]))
    rows += [(f"`{name}_total`", "counter", "none", text) for name, text in (metrics.DUMP_ROWS, metrics.DUMP_BYTES)]
    rows.append((f"`{metrics.HANDED_OVER[0]}`", "histogram", "none", metrics.HANDED_OVER[1]))
    return (
        "# Metrics\n\n" + NOTE + "\n`GET /metrics` on each node, with a token of the role viewer or higher. A node "
        "reports the streams that it runs, and those at rest that it ran last. The counters of records are a stream's "
        "totals and never fall; those of streams that programs push are counted together, without `stream`. The "
        "health, the rejected versions and what programs have pushed are reported by the oldest node alone.\n\n"
        + _table(("metric", "kind", "labels", "meaning"), rows)
        + f"\nThe values of `status` are {_listed(metrics.STATUSES)} of a worker, {_listed(HEALTHS)} of a "
        f"datasource and {_listed(metrics.DUMP_STATUSES)} of a dump; those of `connectivity` are "
        f"{_listed(metrics.CONNECTIVITIES)}. Every node reports the figures of the whole installation, some seconds "
        "old: take their maximum over nodes, not their sum. "
        "See [Monitoring](../operating/monitoring.md) for alerts.\n"
    )


# HTTP.


def http_page() -> str:
    """Every path."""
    rows = sorted([HOOKS, *_paths()], key=lambda row: (not row[0].startswith("/api"), row[0], row[1]))
    table = [(f"`{path}`", method, role, text) for path, method, role, text in rows]
    return (
        "# HTTP\n\n" + NOTE + "\nBodies and answers are JSON. Send a token as `Authorization: Bearer TOKEN`; the "
        "role is the least one that is needed; [Roles](roles.md) has all of them, and what a token's bounds mean. The "
        "OpenAPI document is at `/api/schema`.\n\n"
        + _table(("path", "method", "role", "what it does"), table)
        + "\nAn error is a problem of RFC 9457 (`application/problem+json`) with `title`, `status`, `detail`, `code`, "
        "`hint` and, where a document has several, `problems`, each with `path`, `message` and `hint`. "
        "400: not readable. 401: no valid token. 403: not with this token. 404: not found. 405: another method; "
        "`Allow` names those that are right. 409: refused. 413: the body is larger than 16 MiB. 422: the document or "
        "the body is wrong. 503: not now, with `Retry-After`.\n\n"
        'Bodies are read strictly: a field that nobody knows is refused, and so is a value of another type: `"true"` '
        'is not `true` and `"1"` is not `1`. A body that the OpenAPI document does not call required may be left '
        "out, but must not be `null`. Answers may gain fields; ignore those that you do not know. `/healthz` and "
        "`/readyz` answer HEAD with the status alone.\n\n"
        "A client can be generated from the OpenAPI document, for example with `openapi-python-client`: a test does "
        "that, and works with a node through the client.\n\n"
        "Paths marked SSE are streams of server-sent events. Events and log lines have ids: `?after=ID` or the header "
        "`Last-Event-ID` goes on behind it.\n\n"
        "## Codes\n\n`code` is for programs: `detail` and `hint` may be worded differently in another release.\n\n"
        + _table(("code", "meaning"), [(f"`{code}`", meaning) for code, meaning in CODES.items()])
        + "\nA dump or a backfill that its storage refuses has that storage's code, such as `no_column` or "
        "`cannot_hold`.\n"
    )


def _paths() -> Iterator[tuple[str, str, str, str]]:
    for line in roles.lines():
        if line.path.startswith(roles.ALIASES):
            continue
        role = "open" if line.rule is None else line.rule.roles[0]
        yield line.path, line.method, role, DESCRIBED.get(line.path) or _summary(line.handler)


def with_matrix(text: str) -> str:
    """The page about roles with the table of all paths between its markers."""
    before, after = text.partition(BEGIN_TABLE)[0], text.partition(END_TABLE)[2]
    table = _table(("path", "method", *ROLES, "with bounds"), roles.matrix())
    return f"{before}{BEGIN_TABLE}\n\n{table}\n{END_TABLE}{after}"


def _summary(handler: Any) -> str:
    """The summary, and what the docstring adds to it."""
    summary, more = handler.summary or "", " ".join((inspect.getdoc(handler.fn) or "").split())
    if not summary or not more or summary.startswith(more.rstrip(".")):
        return f"{summary}." if summary else more
    return f"{summary}. {more}"


# What connectors promise.


def with_promises(text: str, promises: dict[str, str]) -> str:
    """The page of a connector with what it promises between its markers: at first, behind its first paragraph."""
    said = " ".join(f"As a {side}: **{promise}**." for side, promise in promises.items())
    block = f"{BEGIN_PROMISE}\n{said}\n{END_PROMISE}"
    if BEGIN_PROMISE in text:
        return f"{text.partition(BEGIN_PROMISE)[0]}{block}{text.partition(END_PROMISE)[2]}"
    title, first, rest = text.split("\n\n", 2)
    return f"{title}\n\n{first}\n\n{block}\n\n{rest}"


# The diagram.


def with_diagram(text: str, drawn: str) -> str:
    """The page with this diagram between its markers."""
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    return f"{before}{BEGIN}\n```mermaid\n{drawn}```\n{END}{after}"


def diagram() -> str:
    """A state diagram: the phases, and what leads from one to another."""
    lines = [f"    {before} --> {after}: {', '.join(labels)}\n" for (before, after), labels in transitions().items()]
    return "".join(["stateDiagram-v2\n    [*] --> Idle\n", *lines])


def transitions(depth: int = DEPTH) -> dict[tuple[str, str], list[str]]:
    """Pairs of phases, and the events that lead from the one to the other, in the order of the machine's states."""
    found: dict[tuple[str, str], set[str]] = {}
    seen, waiting = set(), deque([(machine.Worker(), 0)])
    while waiting:
        worker, steps = waiting.popleft()
        for label, event in _events(worker):
            after = machine.step(worker, event).worker
            pair = type(worker.phase).__name__, type(after.phase).__name__
            if pair[0] != pair[1]:
                found.setdefault(pair, set()).add(label)
            if after not in seen and steps < depth:
                seen.add(after)
                waiting.append((after, steps + 1))
    names = [phase.__name__ for phase in machine.Phase.__args__]
    order = sorted(found, key=lambda pair: (names.index(pair[0]), names.index(pair[1])))
    return {pair: sorted(found[pair]) for pair in order}


def _events(worker: machine.Worker) -> Iterator[tuple[str, machine.Event]]:
    """A few events that could come next, each with its label."""
    run, now_s, wanted = worker.runs, 0.0, worker.wanted
    yield "wanted", machine.Want(wanted or machine.Wanted(1, None, 0), now_s)
    yield "not wanted", machine.Want(None, now_s)
    if wanted is not None and wanted.published == 1:
        yield "publish", machine.Want(machine.Wanted(2, 1, wanted.restarts), now_s)
        if wanted.restarts == 0:
            yield "restart", machine.Want(machine.Wanted(1, wanted.running, 1), now_s)
    yield "granted", machine.Acquired(run, now_s)
    yield "denied", machine.AcquireDenied(run, now_s)
    yield "opened", machine.Opened(run, now_s)
    yield "lost", machine.OwnershipLost(now_s)
    if isinstance(worker.phase, machine.Draining):  # However it ends: it was asked to.
        yield "ended", machine.Ended(run, now_s)
    else:
        yield "finished", machine.Ended(run, now_s, finished=True)
        yield "failed", machine.Failed(run, now_s, machine.Failure(Cause.NETWORK, ""))
        yield "failed for good", machine.Failed(run, now_s, machine.Failure(Cause.CONFIG, ""))
    if wanted is not None and wanted.target is not None:
        yield "checked", machine.Checked(wanted.target, now_s)
    if (due_s := machine.due_s(worker)) is not None:
        yield "time", machine.Tick(due_s)


# The diagram of a consumer's statuses.


def group_diagram() -> str:
    """A state diagram: connectivity and activity, and what leads from one to another."""
    pairs = group_transitions()
    first = dict.fromkeys(after for before, after in pairs if not before)
    named = dict.fromkeys(status for pair in pairs for status in pair if status)
    order = sorted(named, key=_status_order)
    lines = [f'    state "{status}" as {_alias(status)}\n' for status in order]
    lines += [f"    [*] --> {_alias(status)}: joins\n" for status in sorted(first, key=_status_order)]
    inner = sorted((pair for pair in pairs if pair[0]), key=lambda pair: tuple(map(_status_order, pair)))
    lines += [f"    {_alias(pair[0])} --> {_alias(pair[1])}: {', or '.join(pairs[pair])}\n" for pair in inner]
    return "".join(["stateDiagram-v2\n", *lines])


def group_transitions(members: str = "ab") -> dict[tuple[str, str], list[str]]:
    """Pairs of statuses and what leads from the one to the other; from nothing, for one that joins.

    Every history of these members, in a simple group and in one of a partition, until nothing new is found.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for partition in (None, 1):
        seen: set[tuple[object, ...]] = {()}
        waiting = [groups.Group(partition)]
        while waiting:
            group = waiting.pop()
            for command in _group_commands(group, members):
                done = groups.step(group, command)
                after = done.group or groups.Group(partition)
                for pair, label in _changes(group, command, after, done.effects):
                    found.setdefault(pair, set()).add(label)
                key = tuple((c.id, c.connectivity, c.activity) for c in after.consumers)
                if key not in seen:
                    seen.add(key)
                    waiting.append(after)
    return {pair: sorted(labels) for pair, labels in found.items()}


def _group_commands(group: groups.Group, members: str) -> Iterator[groups.Command]:
    """Whatever may happen to each; its connection has its name."""
    present = {c.id: c for c in group.consumers}
    for name in members:
        if (consumer := present.get(name)) is None:
            yield groups.Register(name, name, group.partition)
            continue
        yield groups.Unregister(name)
        yield groups.Confirm(name, consumer.epoch)
        yield groups.ConnectionDisconnected(name)
        yield groups.DisconnectedTimeout(name, consumer.incarnation)
        yield groups.ConnectionReconnected(name)


def _changes(
    group: groups.Group, command: groups.Command, after: groups.Group, effects: tuple[groups.Effect, ...]
) -> Iterator[tuple[tuple[str, str], str]]:
    """Whose status has changed, and why: an event of the consumer itself, an order, or both."""
    before = {c.id: f"{c.connectivity}, {c.activity}" for c in group.consumers}
    orders = {e.consumer: e for e in effects if not isinstance(e, groups.StartDeadline)}
    for c in after.consumers:
        pair = before.get(c.id, ""), f"{c.connectivity}, {c.activity}"
        labels = []
        match command:
            case groups.Confirm(consumer=c.id):
                labels.append("confirms")
            case groups.ConnectionDisconnected(connection=c.connection):
                labels.append("falls silent")
            case groups.DisconnectedTimeout(connection=c.connection):
                labels.append("its deadline passes")
            case groups.ConnectionReconnected(connection=c.connection):
                labels.append("is back")
        if (order := orders.get(c.id)) is not None:
            labels.append("is told active" if isinstance(order, groups.TellActive) else "is told to step down")
        if pair[0] != pair[1]:
            yield pair, " and ".join(labels)


def _status_order(status: str) -> tuple[int, int]:
    connectivity, activity = status.split(", ")
    return get_args(groups.Connectivity).index(connectivity), get_args(groups.Activity).index(activity)


def _alias(status: str) -> str:
    return status.replace(", ", "_")


if __name__ == "__main__":
    for file, page in pages(Path(sys.argv[1])).items():
        file.write_text(page, "utf-8")
