"""`headgate groups`: who takes turns with whom, whose turn it is, and why it is nobody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from headgate.cli.call import Call, command, noun
from headgate.cli.output import DASH, ago, complain, one_line, pairs, table, visible
from headgate.errors import NotFound
from headgate.text import counted, roughly

if TYPE_CHECKING:
    from headgate.web.bodies import groups as bodies
    from headgate.web.bodies.groups import Consumer, GroupDetails, GroupExplanation, Groups, Transition

WORKERS = "workers"

app = noun("Groups: programs, or nodes, of which one at a time is active.")

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream, such as orders:0; any name.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
OrWorkers = Annotated[str, typer.Argument(metavar="GROUP", help="Its name; without it, the nodes that run the stream.")]
OfStream = Annotated[str | None, typer.Option("--stream", metavar="STREAM", help="Only those of this stream.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Also those that may still believe that they are active.")]


@command(app, "list")
def list_(call: Call, stream: OfStream = None, limit: Limit = 1000) -> None:
    """All groups: those of programs, and as `workers` the streams that nodes run."""
    from headgate.web.bodies.groups import Groups

    found = call.node.get("/api/groups", Groups, stream=stream, limit=limit)
    call.relay(found, _table)
    if found.value.more:
        complain(f"headgate: not all are shown, only {counted(limit, 'group')} (--limit shows more, --stream fewer)")


@command(app, "show")
def show(call: Call, stream: Stream, group: OrWorkers = WORKERS) -> None:
    """One group and its consumers."""
    from headgate.web.bodies.groups import GroupDetails

    call.relay(call.node.get(_path(stream, group), GroupDetails), _page)


@command(app, "explain")
def explain(call: Call, stream: Stream, group: OrWorkers = WORKERS) -> None:
    """Who is active, who is awaited and until when, what is in the way, and what happened last."""
    from headgate.web.bodies.groups import GroupExplanation

    call.relay(call.node.get(_path(stream, group, "explain"), GroupExplanation), _explanation)


@command(app, "evaluate")
def evaluate(call: Call, stream: Stream, group: Group, yes: Yes = False) -> None:
    """Drop the consumers that are out of touch, and let the others go on without them."""
    from headgate.web.bodies.groups import Evaluated

    reply = call.node.post(_path(stream, group, "evaluate"), Evaluated, {"yes": yes})
    done = reply.value
    dropped = ", ".join(done.dropped) or "nobody"
    call.say(reply.sent, f"dropped from {group} of {stream}: {dropped}; {counted(done.consumers, 'consumer')} left")


def _path(stream: str, group: str, *rest: str) -> str:
    if not stream or not group:
        raise NotFound(f"group {group!r} of {stream!r} does not exist", hint="headgate groups list")
    return "/".join(["/api/groups", _quoted(stream), _quoted(group), *rest])


def _quoted(name: str) -> str:
    """As one part of a path, whatever is in it: dots alone would lead to another."""
    return quote(name, safe=":", errors="replace") if name.strip(".") else name.replace(".", "%2E")


# How it looks.


def _table(found: Groups) -> str:
    rows = [
        (one.stream, one.name, one.status, one.active, one.consumers, one.epoch, _since(one)) for one in found.items
    ]
    heads = ("STREAM", "GROUP", "STATUS", "ACTIVE", "OF", "EPOCH", "SINCE")
    return table(heads, rows, empty="no groups", right=("OF", "EPOCH"))


def _since(one: bodies.Group) -> str:
    return ago(one.since) if one.active else DASH


def _page(one: GroupDetails) -> str:
    facts = pairs(
        [
            ("stream", one.stream),
            ("group", one.name),
            ("status", one.status),
            ("active", one.active),
            ("since", ago(one.since) if one.active else None),
            ("wished", _wished(one)),
            ("epoch", one.epoch),
            ("partition", one.partition),
            ("lease", f"{one.lease_s:g} s" if isinstance(one.lease_s, float) else None),
            ("fenced", "yes" if one.fenced else None),
            ("ignored", one.ignored or None),
        ]
    )
    outside = one.kind == "outside"
    rows = [
        (member.label, *((member.node,) if outside else ()), *_status(member), _remark(member))
        for member in one.members
    ]
    heads = ("CONSUMER", *(("NODE",) if outside else ()), "CONNECTION", "ACTIVITY", "REMARK")
    return f"{facts}\n\n{table(heads, rows, empty='nobody')}"


def _wished(one: GroupDetails) -> str | None:
    return f"{one.preferred}, by the {_by(one)}" if one.preferred else None


def _by(one: GroupDetails) -> str:
    return "operator" if one.is_pinned else "planner"


def _status(member: Consumer) -> tuple[str, str]:
    return member.connectivity, member.activity


def _remark(member: Consumer) -> str:
    if isinstance(member.why_not, str):
        return member.why_not
    if isinstance(member.waits_s, float):
        what = "muted, " if member.muted else ""
        return f"{what}{roughly(member.waits_s)} left"
    return "" if member.answered else "has not answered"


def _explanation(found: GroupExplanation) -> str:
    lines = [f"{found.stream} {found.name}: {found.status}", *(f"  {line}" for line in found.lines)]
    text = "\n".join(one_line(line) for line in lines)
    if not found.lately:
        return text
    rows = [(ago(one.at), one.what, one.who, _orders(one)) for one in reversed(found.lately)]
    return f"{text}\n\n{table(('WHEN', 'WHAT', 'WHO', 'TOLD'), rows, empty='')}"


def _orders(one: Transition) -> str:
    return visible("; ".join(f"{who or DASH}: {what}, epoch {epoch}" for what, who, epoch in one.told))
