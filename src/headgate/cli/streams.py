"""`headgate streams`: who reads what, how far they are, and where or how they should go on instead."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote

import typer

from headgate.cli.call import Call, Yes, command, insist, noun
from headgate.cli.history import Limit
from headgate.cli.output import DASH, ago, one_line, pairs, table, to_json
from headgate.errors import NotFound
from headgate.ids import as_id, is_label, is_name

if TYPE_CHECKING:
    from headgate.web.bodies import streams as bodies
    from headgate.web.bodies.streams import History, HistoryLine, Moved, StreamDetails, Streams

app = noun("Streams: who has them, how far they are, and where they go on.")

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="Its name, such as orders:0, or its id.")]
Position = Annotated[str | None, typer.Argument(metavar="POSITION", help="JSON: 99, null, '\"a text\"'.")]
Line = Annotated[
    int | None,
    typer.Option("--from-history", min=1, metavar="N", help="The position of this line of `streams history`."),
]
Node = Annotated[str | None, typer.Argument(metavar="NODE", help="Where to: a node's name or id.")]
Anywhere = Annotated[bool, typer.Option("--anywhere", help="Leave it to the planner again.")]
Undo = Annotated[bool, typer.Option("--undo", help="Back to the position that the last edit replaced.")]


@command(app, "list")
def list_(call: Call) -> None:
    """All streams."""
    from headgate.web.bodies.streams import Streams

    call.relay(call.node.get("/api/streams", Streams), _table)


@command(app, "show")
def show(call: Call, stream: Stream) -> None:
    """One stream: who has it, where it stands, and how it does."""
    from headgate.web.bodies.streams import StreamDetails

    call.relay(call.node.get(_path(stream), StreamDetails), _page)


@command(app, "history")
def history(call: Call, stream: Stream, limit: Limit = 50) -> None:
    """Where a stream stood each time it changed hands or was edited, the latest first."""
    from headgate.web.bodies.streams import History

    call.relay(call.node.get(_path(stream, "history"), History, limit=limit), _lines)


@command(app, "set-position")
def set_position(
    call: Call, stream: Stream, position: Position = None, line: Line = None, undo: Undo = False, yes: Yes = False
) -> None:
    """Have a stream that is paused or stopped go on elsewhere; says first what that skips or reads again. It can be
    undone."""
    from headgate.web.bodies.streams import Edited

    body: dict[str, Any] = {"position": _value(position)} if position is not None else {}
    body |= {"history": line} if line is not None else {}
    body |= {"undo": True} if undo else {}
    if len(body) != 1:
        raise typer.BadParameter("give a POSITION, --from-history or --undo, and one of them only")
    path = _path(stream, "position")
    done = insist(lambda yes: call.node.put(path, Edited, {**body, "yes": yes}), "unconfirmed", "Do it?", yes=yes)
    now = done.value
    call.say(done.sent, f"{now.name}: {_exact(now.before)} → {_exact(now.position)}")


@command(app, "move")
def move(call: Call, stream: Stream, node: Node = None, anywhere: Anywhere = False) -> None:
    """Have a node run a stream until that node leaves, or leave it to the planner again."""
    from headgate.web.bodies.streams import Moved

    if (node is None) != anywhere:
        raise typer.BadParameter("give a NODE or --anywhere, and not both")
    done = call.node.post(_path(stream, "move"), Moved, {"node": node})
    call.say(done.sent, _moved(done.value))


def _path(name: str, *rest: str) -> str:
    """What cannot be the name of a stream cannot lead to another path either."""
    datasource, _, part = name.partition(":")
    if as_id(name) is None and not (is_name(datasource) and is_label(part)):
        raise NotFound(f"stream {name!r} does not exist", hint="headgate streams list")
    return "/".join(["/api/streams", quote(name, safe=":"), *rest])


def _value(text: str) -> Any:
    """The position. Half an object, taken as text, would be a position that no source can use."""
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        place = f"at character {error.pos + 1}"
        why = f"{error.msg[:1].lower()}{error.msg[1:]}"
    except RecursionError:
        place, why = "", "it is nested too deeply"
    except ValueError as error:
        place, why = "", str(error)
    raise typer.BadParameter(f"POSITION is not JSON{f' {place}' if place else ''}: {why}; a text needs quotes: '\"…\"'")


def _refuse(word: str) -> NoReturn:
    """Python reads NaN and Infinity as numbers; JSON has no such thing."""
    raise ValueError(f"{word} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a name twice")
    return found


# How it looks.


def _exact(position: Any) -> str:
    """As JSON, so that 5 and "5" differ."""
    return to_json(position, indent=None)


def _table(found: Streams) -> str:
    rows = [(one.name, *_owner(one), one.epoch, one.version, one.position) for one in found.items]
    heads = ("STREAM", "NODE", "ID", "EPOCH", "VERSION", "POSITION")
    return table(heads, rows, empty="no streams: nothing has been published", right=("EPOCH", "VERSION"))


def _owner(one: bodies.Stream) -> tuple[str, str]:
    """Names may repeat, so the id follows it."""
    return (one.node or DASH, str(one.owner)[:8]) if one.owner else (DASH, DASH)


def _page(one: StreamDetails) -> str:
    state = f"{one.state.worker_status}, {one.state.detail}" if one.state else "INIT, not started"
    error = one.state.error if one.state else None
    return pairs(
        [
            ("stream", one.name),
            ("id", str(one.id)),
            ("node", " ".join(_owner(one)) if one.owner else "none"),
            ("wished", _wish(one)),
            ("state", state),
            ("error", one_line(f"{error.cause}: {error.message}") if error else None),
            ("rests", "its source has ended" if one.rests else None),
            *(("unable", one_line(f"{node.node}: {node.reason}, {ago(node.at)}")) for node in one.unable),
            ("version", one.version),
            ("epoch", one.epoch),
            ("generation", one.generation),
            ("commits", one.commits),
            ("position", _exact(one.position)),
        ]
    )


def _wish(one: StreamDetails) -> str | None:
    wish = one.wish
    return f"{wish.node} {str(wish.id)[:8]}, by the {wish.by}" if wish else None


def _moved(done: Moved) -> str:
    name, wish = done.name, done.wish
    if wish is None or wish.by == "planner":
        return f"{name} is left to the planner" if done.is_new else f"{name} was left to the planner already"
    if done.owner is None:
        return f"{name} goes to {wish.node} when it runs"
    if done.owner == wish.id:
        return f"{name} stays on {wish.node}"
    return f"{name} moves from {done.node or 'a node that is gone'} to {wish.node}"


def _lines(found: History) -> str:
    rows = [
        (one.id, ago(one.at), one.kind, one.actor, one.epoch, one.generation, one.commits, _stood(one))
        for one in found.items
    ]
    heads = ("N", "WHEN", "WHAT", "BY", "EPOCH", "GENERATION", "COMMITS", "POSITION")
    return table(heads, rows, empty="it has never run", right=("N", "EPOCH", "GENERATION", "COMMITS"))


def _stood(one: HistoryLine) -> str:
    after = _exact(one.position)
    return f"{_exact(one.before)} → {after}" if one.kind == "edited" else after
