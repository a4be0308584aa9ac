"""`headgate ds tap`: the records of a datasource as they flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from headgate.cli.call import Call, Name, command, datasource
from headgate.cli.ds import app
from headgate.cli.output import complain, one_line, to_json
from headgate.text import counted

if TYPE_CHECKING:
    from headgate.core.tap import Shown

Place: TypeAlias = Literal["source", "mapped", "written", "dead"]


@command(app, "tap")
def tap(
    call: Call,
    name: Name,
    at: Annotated[
        Place, typer.Option(help="As they were read, as they were mapped, once they are durable, or if they failed.")
    ] = "source",
    where: Annotated[str, typer.Option(metavar="EXPR", help="Only those for which this expression holds.")] = "",
    sample: Annotated[int, typer.Option(min=1, metavar="N", help="One in N of them.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after this many.")] = None,
    lasts: Annotated[str, typer.Option("--for", metavar="TIME", help="End after this time, such as 30s.")] = "1h",
) -> None:
    """Show records as they flow, from whichever node runs the datasource. What is too much is dropped and counted."""
    from headgate.web.bodies.taps import Tapped

    params = {"at": at, "where": where, "sample": sample, "for": lasts}
    if limit is not None:
        params["limit"] = limit
    for one in call.node.stream(datasource(name, "tap"), Tapped, **params):
        if one.value.ended is not None:
            return
        if call.as_json:
            call.line(one.sent, "")
        elif one.value.shown is not None:
            call.line(None, _line(one.value.shown))
        else:
            complain(f"{counted(one.value.dropped, 'record')} dropped")


def _line(one: Shown) -> str:
    """Where it is, what is wrong with it if something is, and the record."""
    why = f"{one.field}: {one.reason}" if one.field else one.reason
    words = [
        f"{one.stream} {one.place}",
        f"{one.stage}: {why}" if one.stage else why,
        "deletion" if one.is_deletion else None,
        "cut" if one.is_cut else None,
    ]
    return one_line(f"{', '.join(word for word in words if word)}  {to_json(one.record, indent=None)}")
