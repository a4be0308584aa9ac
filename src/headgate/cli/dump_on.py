"""`headgate dump … --on URL`: a node runs the dump, and this process only shows how it goes.

The node opens the storages: URLs and paths are as it sees them, and it reaches what the token may name. Ctrl-C ends
the showing, not the dump. A node that is away for a while may be starting again; another one runs the dump meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headgate.cli import dumping, progress
from headgate.cli.call import Call
from headgate.cli.client import Interrupted, Reply, Unreachable
from headgate.cli.dump_places import AtNode
from headgate.cli.output import complain
from headgate.errors import Busy, StoreError

if TYPE_CHECKING:
    from headgate.runtime.dumps.plan import Request
    from headgate.runtime.dumps.views import DumpView

LOOK_S = 0.3
PATIENCE_S = 60.0  # Longer than a node takes to start again, and its database to come back.


def dump_on(call: Call, request: Request, *, detach: bool) -> None:
    """Have the node do it; show it to its end, unless it is left to itself."""
    from headgate.runtime.dumps.views import DumpView

    reply = call.node.post("/api/dumps", DumpView, _body(request))
    found = reply.value
    if detach:
        call.say(reply.sent, f"dump {found.short} is left to the nodes ({_command(call, 'show', found)})")
        return
    try:
        last = _followed(call, found)
    except KeyboardInterrupt:
        complain(f"headgate: the dump goes on without us ({_command(call, 'show', found)})")
        raise
    except (Unreachable, StoreError) as error:
        error.hint = f"the dump goes on without us: {_command(call, 'show', found)}"
        raise
    dumping.conclude(call, last, _command(call, "resume", found))


def _body(request: Request) -> dict[str, Any]:
    """What the API takes."""
    options = request.options
    return {
        "source": request.source,
        "target": request.target,
        "tables": list(request.tables),
        "mode": str(options.mode),
        "workers": options.workers,
        "chunk_rows": request.rows,
        "rate": request.rate,
        "source_timeout_s": options.source_timeout_s,
        "key": list(request.key),
        "include": list(request.include),
        "exclude": list(request.exclude),
        "schema_only": request.schema_only,
        "data_only": request.data_only,
        "owners": request.owners,
        "privileges": request.privileges,
        "columns": dict(request.columns),
        "since": list(request.since),
        "yes": request.yes,
        "spread": request.spread,
    }


def _command(call: Call, verb: str, found: DumpView) -> str:
    return f"headgate dumps {verb} {found.short} --url {call.node.url}"


def _followed(call: Call, found: DumpView) -> Reply[DumpView]:
    """Show it until its end."""
    from headgate.core.chunks.outcome import OVER, RESUMABLE, Status

    place, shown = AtNode(call), progress.chosen()
    tables: dict[str, progress.Table] = {}
    said = Status.RUNNING
    answered_s = time.monotonic()
    try:
        while True:
            try:
                reply = place.one(found.id)
                answered_s = time.monotonic()
            except (Unreachable, Interrupted, StoreError, Busy):
                if time.monotonic() - answered_s > PATIENCE_S:
                    raise
                time.sleep(1.0)
                continue
            for table in reply.value.tables:
                known = tables.setdefault(table.target, progress.Table(table))
                if table.state == "failed" != known.state:
                    shown.say(progress.given_up(table.name))
                known.learn(table)
            shown.show(list(tables.values()))
            status = reply.value.status
            if status in OVER | RESUMABLE - {Status.PAUSED}:
                return reply
            if status not in (said, Status.RUNNING):
                shown.say(dumping.status_line(found.short, status))
            said = status
            time.sleep(LOOK_S)
    finally:
        shown.close()
