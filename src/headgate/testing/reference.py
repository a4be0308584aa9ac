"""Writes what can be read off the code: `python -m headgate.testing.reference docs/reference`.

The settings, metrics and paths are whole pages. The diagram of a worker's life is put between two markers of
`docs/concepts/lifecycle.md`: the states are walked breadth-first through the real machine, so the diagram cannot say
what the code does not do. The same code always gives the same text.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from litestar.datastructures import State
from litestar.routes import HTTPRoute

from headgate.config import Settings
from headgate.core import lifecycle as machine
from headgate.errors import Cause
from headgate.telemetry import metrics
from headgate.web.app import make_api

BEGIN, END = "<!-- begin generated diagram -->", "<!-- end generated diagram -->"
NOTE = "<!-- Written by `make docs` from the code; edit the code instead. -->\n"

# What the code cannot say of itself: pages, and paths that the framework or the webhook door answers.
SAID = {
    "/": "The console; without a token, the page to sign in.",
    "/login": "Sign in to the console: a form with `token`.",
    "/logout": "Sign out of the console. The token stays valid elsewhere.",
    "/static/{name}": "Styles and scripts of the console.",
    "/api/schema": "OpenAPI, as JSON.",
}
HOOKS = ("/hooks/{datasource}", "POST", "operator, or a signature", "Hand over a payload; 202 once it is durable.")

DEPTH = 6  # Steps of the walk. Deeper walks find no other transition; a test looks.


def pages(folder: Path) -> dict[Path, str]:
    """The pages as they should be."""
    concept = folder.parent / "concepts" / "lifecycle.md"
    return {
        folder / "settings.md": settings_page(),
        folder / "metrics.md": metrics_page(),
        folder / "http.md": http_page(),
        concept: with_diagram(concept.read_text("utf-8"), diagram()),
    }


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


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
        + "\nThe commands also read `HEADGATE_URL` and `HEADGATE_TOKEN`; see [Commands](cli.md).\n"
    )


# Metrics.


def metrics_page() -> str:
    """Every metric, as Prometheus reads it."""
    stream = "`datasource`, `stream`"
    labels = dict.fromkeys(metrics.GAUGES, stream) | {"headgate_worker_status": f"{stream}, `status`"}
    alone = ("headgate_trust_seconds", "headgate_loop_delay_seconds", "headgate_push_sessions")
    labels |= dict.fromkeys(alone, "none")
    rows = [(f"`{name}_total`", "counter", stream, text) for name, text in metrics.COUNTERS.values()]
    rows += [(f"`{name}`", "gauge", labels[name], text) for name, text in metrics.GAUGES.items()]
    rows.append((f"`{metrics.WEBHOOKS[0]}_total`", "counter", "`datasource`, `answer`", metrics.WEBHOOKS[1]))
    rows.append((f"`{metrics.PUSH_RECORDS[0]}_total`", "counter", "none", metrics.PUSH_RECORDS[1]))
    rows.append((f"`{metrics.PUSH_ENDS[0]}_total`", "counter", "`code`", metrics.PUSH_ENDS[1]))
    return (
        "# Metrics\n\n" + NOTE + "\n`GET /metrics` on each node, with a token of the role viewer or higher. A node "
        "reports the streams that it knows; counters begin at 0 with each incarnation of the node.\n\n"
        + _table(("metric", "kind", "labels", "meaning"), rows)
        + f"\nThe values of `status` are {', '.join(f'`{status}`' for status in metrics.STATUSES)}. "
        "See [Monitoring](../operating/monitoring.md) for alerts.\n"
    )


# HTTP.


def http_page() -> str:
    """Every path."""
    rows = sorted([HOOKS, *_paths()], key=lambda row: (not row[0].startswith("/api"), row[0], row[1]))
    table = [(f"`{path}`", method, role, text) for path, method, role, text in rows]
    return (
        "# HTTP\n\n" + NOTE + "\nBodies and answers are JSON. Send a token as `Authorization: Bearer TOKEN`; each role "
        "may do what those before it may: viewer, operator, admin. The OpenAPI document is at `/api/schema`.\n\n"
        + _table(("path", "method", "role", "what it does"), table)
        + "\nAn error is a problem of RFC 9457 (`application/problem+json`) with `title`, `status`, `detail`, `code`, "
        "`hint` and, where a document has several, `problems`, each with `path`, `message` and `hint`. "
        "400: not readable. 401: no valid token. 403: not with this role. 404: not found. 409: refused. "
        "422: the document is wrong. 503: not now, with `Retry-After`.\n\n"
        "Paths marked SSE are streams of server-sent events. Events and log lines have ids: `?after=ID` or the header "
        "`Last-Event-ID` goes on behind it.\n"
    )


def _paths() -> Iterator[tuple[str, str, str, str]]:
    for route in make_api(None, State()).routes:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        if not isinstance(route, HTTPRoute) or path.startswith("/api/schema/"):
            continue
        for handler in route.route_handlers:
            for method in sorted(handler.http_methods - {"OPTIONS"}):
                yield path, str(method), _role(handler), SAID.get(path) or _summary(handler)


def _role(handler: Any) -> str:
    roles = [inspect.getclosurevars(guard).nonlocals.get("role") for guard in handler.resolve_guards()]
    return next((str(role) for role in roles if role), "open")


def _summary(handler: Any) -> str:
    """The summary, and what the docstring adds to it."""
    summary, more = handler.summary or "", inspect.getdoc(handler.fn) or ""
    return f"{summary}." if summary.startswith(more.rstrip(".")) else f"{summary}. {more}"


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
        yield "publish", machine.Want(machine.Wanted(2, 1, wanted.mark), now_s)
        if wanted.mark == 0:
            yield "restart", machine.Want(machine.Wanted(1, wanted.running, 1), now_s)
    yield "granted", machine.Granted(run, now_s)
    yield "denied", machine.Denied(run, now_s)
    yield "opened", machine.Opened(run, now_s)
    yield "lost", machine.Lost(now_s)
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


if __name__ == "__main__":
    for file, page in pages(Path(sys.argv[1])).items():
        file.write_text(page, "utf-8")
