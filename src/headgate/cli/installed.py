"""Connectors of others, as commands show them, and an installation that is waited for."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from headgate.cli.call import Call
from headgate.cli.client import Reply
from headgate.cli.output import ago, complain, table
from headgate.errors import NotFound, Refused

if TYPE_CHECKING:
    from headgate.web.bodies.installed import InstalledConnectors, Installing

INSTALLED = "/api/connectors/installed"
POLL_S = 1.0


def path_of(name: str) -> str:
    """The path of `KIND:NAME`."""
    kind, colon, package = name.partition(":")
    if not colon or not kind or not package or "/" in name or len(name) > 300:
        raise NotFound(f"no connector {name!r} is installed", hint="headgate connectors list")
    return f"{INSTALLED}/{quote(kind, safe='')}/{quote(package, safe='')}"


def all_of(call: Call) -> Reply[InstalledConnectors] | None:
    """Those that the node has. None: it is of a release that has none."""
    from headgate.web.bodies.installed import InstalledConnectors

    with suppress(NotFound):
        return call.node.get(INSTALLED, InstalledConnectors)
    return None


def lines(found: InstalledConnectors) -> str:
    """All of them as a table."""
    rows = [(f"{one.kind}:{one.name}", one.version, one.program, ago(one.installed_at)) for one in found.items]
    return table(("INSTALLED", "VERSION", "PROGRAM", "SINCE"), rows, empty="")


def follow(call: Call, begun: Installing) -> str:
    """Wait until it is installed, saying how it goes. Returns its version. It goes on if this command is stopped."""
    from headgate.web.bodies.installed import InstalledConnectors

    shown = ""
    while True:
        found = call.node.get(INSTALLED, InstalledConnectors).value
        now = found.installing
        if now is None or now.began_at != begun.began_at:
            kind, _, package = begun.package.partition(":")
            name = package.partition("==")[0].partition("[")[0]
            done = next((one for one in found.items if one.kind == kind and one.name == name), None)
            if done is None:
                raise Refused(f"{begun.package} is not there", hint="headgate connectors list")
            return done.version
        if now.error is not None:
            raise Refused(f"{begun.package} was not installed: {now.error}")
        step = f"{now.step}: {now.said}" if now.said else now.step
        if step != shown and not call.as_json:
            complain(step)
            shown = step
        time.sleep(POLL_S)
