"""`headgate fixtures`: inputs of a datasource with the results that they should have. `ds test --save` makes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.call import Call, Name, Yes, checked, command, confirm, datasource, noun
from headgate.cli.output import ago, short, table
from headgate.text import size

if TYPE_CHECKING:
    from headgate.web.bodies.harness import FixtureShown, FixturesListed

app = noun("Fixtures: inputs of a datasource, and what must become of them when it is published.")

Fixture = Annotated[str, typer.Argument(metavar="FIXTURE", help="The fixture.")]


@command(app, "list")
def list_(call: Call, name: Name) -> None:
    """The fixtures of a datasource."""
    from headgate.web.bodies.harness import FixturesListed

    def render(found: FixturesListed) -> str:
        rows = [(one.name, one.inputs, size(one.size_bytes), one.author, ago(one.changed_at)) for one in found.items]
        empty = f"no fixtures yet (headgate ds test {name} --payload FILE --save FIXTURE)"
        return table(("NAME", "INPUTS", "SIZE", "AUTHOR", "CHANGED"), rows, empty=empty, right=("INPUTS", "SIZE"))

    call.relay(call.node.get(datasource(name, "fixtures"), FixturesListed), render)


@command(app, "show")
def show(call: Call, name: Name, fixture: Fixture) -> None:
    """One fixture, with its records."""
    from headgate.web.bodies.harness import FixtureShown

    call.relay(call.node.get(_path(name, fixture), FixtureShown), _page)


@command(app, "delete")
def delete(call: Call, name: Name, fixture: Fixture, yes: Yes = False) -> None:
    """Delete a fixture. It no longer holds a publish up."""
    path = _path(name, fixture)
    confirm(f"Delete the fixture {fixture!r} of {name!r}?", yes=yes)
    call.node.delete(path)
    call.say({"name": name, "fixture": fixture, "action": "delete"}, f"deleted the fixture {fixture} of {name}")


def _path(name: str, fixture: str) -> str:
    return datasource(name, "fixtures", checked(fixture, "fixture", f"headgate fixtures list {name}"))


def _page(found: FixtureShown) -> str:
    rows = [
        (number, result.outcome.replace("_", " "), short(result.after or result.reason), short(one.given))
        for number, one in enumerate(found.inputs)
        for result in one.expected
    ]
    text = table(("#", "OUTCOME", "EXPECTED", "GIVEN"), rows, empty="", right=("#",))
    masked = f"\n\nnot compared: {', '.join(found.masked)}" if found.masked else ""
    return f"{text}{masked}"
