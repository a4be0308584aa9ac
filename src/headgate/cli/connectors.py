"""`headgate connectors`: what can be read from and written to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headgate.cli import installed
from headgate.cli.call import Call, Yes, checked, command, insist, noun
from headgate.cli.installed import INSTALLED
from headgate.cli.output import say, short, table, visible

if TYPE_CHECKING:
    from headgate.web.bodies.datasources import ConnectorOptions, Connectors
    from headgate.web.bodies.installed import InstalledConnector

T = TypeVar("T", list[Any], dict[str, Any])
DEEPEST = 5  # Levels of a schema that are told.

app = noun("Connectors: what can be read from and written to.")


@command(app, "list")
def list_(
    call: Call,
    here: Annotated[bool, typer.Option("--here", help="What is installed here; no node is asked.")] = False,
) -> None:
    """All connectors that the node has, what each promises, and what is missing for them."""
    from headgate.web.bodies.datasources import Connectors

    if here:
        call.show(_here(), _table)
        return
    found, others = call.node.get("/api/connectors", Connectors), installed.all_of(call)
    if call.as_json:
        call.show({**found.sent, "installed": others.sent["items"] if others is not None else []}, str)
        return
    call.relay(found, _table)
    if others is not None and others.value.items:
        say("")
        call.relay(others, installed.lines)


@command(app, "show")
def show(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The connector, or KIND:NAME of one that is installed.")],
) -> None:
    """One connector and its options."""
    from headgate.web.bodies.datasources import ConnectorOptions
    from headgate.web.bodies.installed import InstalledConnector

    if ":" in name:
        call.relay(call.node.get(installed.path_of(name), InstalledConnector), _installed_page)
        return
    path = f"/api/connectors/{checked(name, 'connector', 'headgate connectors list')}"
    call.relay(call.node.get(path, ConnectorOptions), _page)


@command(app, "new", asks_node=False)
def new(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the connector is to be called: its `type`.")],
    folder: Annotated[
        str | None, typer.Option("--folder", metavar="FOLDER", help="Where to make it. Default: headgate-NAME.")
    ] = None,
) -> None:
    """Make a package with a connector to begin with: a source, a sink, and tests that hold them to the contract."""
    from headgate.cli import scaffold

    made = scaffold.make(name, folder)
    call.say(
        {"folder": str(made.folder), "files": made.files},
        f"{made.folder} has {', '.join(made.files)}\nnext: pip install -e '{made.folder}[test]'; pytest {made.folder}",
    )


@command(app, "install")
def install(
    call: Call,
    package: Annotated[str, typer.Argument(metavar="KIND:PACKAGE[==VERSION]", help="singer:…, airbyte:… or dlt:….")],
    extra: Annotated[
        list[str] | None, typer.Option("--with", metavar="PACKAGE", help="One more package, such as a driver.")
    ] = None,
) -> None:
    """Install a connector of others in the node's home: a Singer tap, an Airbyte source or a dlt source."""
    from headgate.web.bodies.installed import Installing

    begun = call.node.post(INSTALLED, Installing, {"package": package, "with": extra or []})
    done = installed.follow(call, begun.value)
    call.say({"package": begun.value.package, "version": done}, f"installed {begun.value.package}, version {done}")


@command(app, "remove")
def remove(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="KIND:NAME", help="As `connectors list` has it.")],
    yes: Yes = False,
) -> None:
    """Remove a connector that was installed; one that a datasource uses only with --yes."""
    path = installed.path_of(name)
    insist(lambda yes: call.node.delete(path, yes=yes or None), "in_use", f"Remove {name!r}?", yes=yes)
    call.say({"name": name, "action": "remove"}, f"removed {name}")


def _here() -> Connectors:
    from headgate.connectors.installed import lines
    from headgate.web.bodies.datasources import Connector, Connectors

    items = [
        Connector(name=one.name, summary=one.summary, sides=list(one.sides), promises=one.promises, install=one.install)
        for one in lines()
    ]
    return Connectors(items=items)


def _table(found: Connectors) -> str:
    rows = [(one.name, " + ".join(one.sides) or "broken", one.summary) for one in found.items]
    parts = [table(("CONNECTOR", "SIDES", "SUMMARY"), rows, empty="no connectors")]
    promises = [(one.name, side, promise) for one in found.items for side, promise in one.promises.items()]
    if promises:
        parts.append(table(("CONNECTOR", "SIDE", "GUARANTEE"), promises, empty="", wrap=True))
    absent = [(one.name, one.install) for one in found.items if one.install]
    if absent:
        parts.append(table(("CONNECTOR", "NEEDS"), absent, empty="", wrap=True))
    return "\n\n".join(parts)


def _page(found: ConnectorOptions) -> str:
    parts = [f"{found.name}: {visible(found.summary)}"]
    if found.install:
        parts.append(f"It needs what is not installed: {visible(found.install)}")
    for side, schema in (("source", found.source), ("sink", found.sink)):
        if schema:
            note = " (transactional)" if side == "sink" and found.transactional else ""
            promise = f" {visible(found.promises[side])}." if side in found.promises else ""
            parts.append(f"As a {side}{note}:{promise}\n{_options(schema)}")
    return "\n\n".join(parts)


def _installed_page(found: InstalledConnector) -> str:
    about = f"{found.kind}:{found.name} {found.version}, on Python {found.python}"
    options = _options(found.spec) if found.spec else "It does not say which options it has."
    packages = visible(", ".join(found.packages))
    return f"{visible(about)}\n\nIts configuration:\n{options}\n\nInstalled with it: {packages}"


def _options(schema: dict[str, Any]) -> str:
    """A schema may be somebody else's, and have anything in it."""
    required, known = _of(list, schema.get("required")), _of(dict, schema.get("$defs"))
    rows = [
        (
            name,
            _type(one, known),
            "required" if name in required else short(one.get("default")),
            one.get("description", ""),
        )
        for name, one in _of(dict, schema.get("properties")).items()
        if isinstance(one, dict)
    ]
    return table(("OPTION", "TYPE", "DEFAULT", "MEANING"), rows, empty="It has no options.", wrap=True)


def _of(kind: type[T], value: Any) -> T:
    return value if isinstance(value, kind) else kind()


def _type(schema: Any, known: dict[str, Any], depth: int = 0) -> str:
    """A JSON Schema's type in a few words; the whole schema is what --json is for."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return "any"
    if "$ref" in schema:
        return _type(known.get(str(schema["$ref"]).rpartition("/")[2], {}), known, depth + 1)
    if "enum" in schema or "const" in schema:
        return "|".join(map(str, _of(list, schema.get("enum", [schema.get("const")]))))
    if several := _of(list, schema.get("anyOf") or schema.get("oneOf")):
        words = [_type(one, known, depth + 1) for one in several]
        return "|".join(dict.fromkeys(word for word in words if word != "null"))
    return str(schema.get("type", "any"))
