"""`headgate connectors`: what can be read from and written to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.call import Call, checked, command, noun
from headgate.cli.output import short, table, visible

if TYPE_CHECKING:
    from headgate.web.bodies.datasources import ConnectorOptions, Connectors

app = noun("Connectors: what can be read from and written to.")


@command(app, "list")
def list_(call: Call) -> None:
    """All connectors that the node has."""
    from headgate.web.bodies.datasources import Connectors

    call.relay(call.node.get("/api/connectors", Connectors), _table)


@command(app, "show")
def show(call: Call, name: Annotated[str, typer.Argument(metavar="NAME", help="The connector.")]) -> None:
    """One connector and its options."""
    from headgate.web.bodies.datasources import ConnectorOptions

    path = f"/api/connectors/{checked(name, 'connector', 'headgate connectors list')}"
    call.relay(call.node.get(path, ConnectorOptions), _page)


def _table(found: Connectors) -> str:
    rows = [(one.name, " + ".join(one.sides) or "broken", one.summary) for one in found.items]
    return table(("CONNECTOR", "SIDES", "SUMMARY"), rows, empty="no connectors")


def _page(found: ConnectorOptions) -> str:
    parts = [f"{found.name}: {visible(found.summary)}"]
    for side, schema in (("source", found.source), ("sink", found.sink)):
        if schema:
            note = " (transactional)" if side == "sink" and found.transactional else ""
            parts.append(f"As a {side}{note}:\n{_options(schema)}")
    return "\n\n".join(parts)


def _options(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        (
            name,
            _type(one, schema.get("$defs", {})),
            "required" if name in required else short(one.get("default")),
            one.get("description", ""),
        )
        for name, one in schema.get("properties", {}).items()
    ]
    return table(("OPTION", "TYPE", "DEFAULT", "MEANING"), rows, empty="It has no options.", wrap=True)


def _type(schema: dict[str, Any], known: dict[str, Any]) -> str:
    """A JSON Schema's type in a few words; the whole schema is what --json is for."""
    if "$ref" in schema:
        return _type(known.get(str(schema["$ref"]).rpartition("/")[2], {}), known)
    if "enum" in schema or "const" in schema:
        return "|".join(map(str, schema.get("enum", [schema.get("const")])))
    if several := schema.get("anyOf") or schema.get("oneOf"):
        words = [_type(one, known) for one in several]
        return "|".join(dict.fromkeys(word for word in words if word != "null"))
    return str(schema.get("type", "any"))
