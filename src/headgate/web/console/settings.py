"""The pages of settings: secrets, tokens, what documents may reach, connectors, and the installation itself.

Each is a page with its address and its own rule; the tabs show those that the reader may open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from litestar import Response, get

from headgate.clock import unix_s
from headgate.connectors.bridges import Installed, Work
from headgate.core.access import ROLES, Action, Caller, may
from headgate.core.reach import Kind
from headgate.datasources.notifications import users_of_secrets
from headgate.runtime.node import Node
from headgate.store.secrets import UsedBy
from headgate.store.tokens import Issued
from headgate.web.api.health import lineage_of
from headgate.web.auth import Needs
from headgate.web.bodies.access import Lineage
from headgate.web.console import notifications, words
from headgate.web.console.acts import Act, command
from headgate.web.console.connectors import connector_rows
from headgate.web.console.frame import framed
from headgate.web.console.session import Req, signed_in


@dataclass(frozen=True, slots=True)
class Tab:
    """One page of the settings."""

    label: str
    path: str
    action: Action


TABS = (
    Tab("Secrets", "/settings/secrets", "operate_all"),
    Tab("Tokens", "/settings/tokens", "administer"),
    Tab("Allowed", "/settings/allowed", "operate_all"),
    Tab("Connectors", "/settings/connectors", "learn"),
    Tab("Notifications", "/settings/notifications", "operate_all"),
    Tab("Installation", "/settings/installation", "see_all"),
)


def tabs(holder: Caller, at: str) -> list[tuple[str, str, bool]]:
    """As `parts.tabs` takes them."""
    return [(one.label, one.path, one.path == at) for one in TABS if may(holder, one.action)]


Values = Callable[[Node, Caller], Awaitable[dict[str, Any]]]


async def _shown(node: Node, holder: Caller, at: str, values: Values) -> Response[str]:
    """A page of the settings, with its tabs."""
    template = f"{at.strip('/').replace('/', '_')}.html"
    return framed(holder, template, at="settings", tabs=tabs(holder, at), **await values(node, holder))


@get("/settings", include_in_schema=False, needs=Needs("learn"))
async def settings_page(node: Node, request: Req) -> Response[Any]:
    """The first one that the reader may open."""

    async def first(holder: Caller) -> Response[str]:
        at = tabs(holder, "")[0][1]
        return await _shown(node, holder, at, VALUES[at])

    return await signed_in(request, first, is_own=True)


@get("/settings/secrets", include_in_schema=False, needs=Needs("operate_all"))
async def secrets_page(node: Node, request: Req) -> Response[Any]:
    """Names, and who uses them."""
    return await signed_in(request, lambda holder: _shown(node, holder, "/settings/secrets", _secrets))


@get("/settings/tokens", include_in_schema=False, needs=Needs("administer"))
async def tokens_page(node: Node, request: Req) -> Response[Any]:
    """Who may do what."""
    return await signed_in(request, lambda holder: _shown(node, holder, "/settings/tokens", _tokens), is_own=True)


@get("/settings/allowed", include_in_schema=False, needs=Needs("operate_all"))
async def allowed_page(node: Node, request: Req) -> Response[Any]:
    """What documents may reach."""
    return await signed_in(request, lambda holder: _shown(node, holder, "/settings/allowed", _allowed))


@get("/settings/connectors", include_in_schema=False, needs=Needs("learn"))
async def connectors_page(node: Node, request: Req) -> Response[Any]:
    """What there is to read from and write to."""
    return await signed_in(request, lambda holder: _shown(node, holder, "/settings/connectors", _connectors))


@get("/settings/notifications", include_in_schema=False, needs=Needs("operate_all"))
async def notifications_page(node: Node, request: Req) -> Response[Any]:
    """Who is told of what."""
    return await signed_in(
        request, lambda holder: _shown(node, holder, "/settings/notifications", notifications.values)
    )


@get("/settings/installation", include_in_schema=False, needs=Needs("see_all"))
async def installation_page(node: Node, request: Req) -> Response[Any]:
    """Which one this is, and its history."""
    return await signed_in(request, lambda holder: _shown(node, holder, "/settings/installation", _installation))


# Secrets.


async def _secrets(node: Node, holder: Caller) -> dict[str, Any]:
    secrets = node.registry.secrets
    found, users = await secrets.all(), await secrets.users()
    told = users_of_secrets((await node.notifications.read()).document)
    known = {one.name for one in found}
    rows = [
        _secret(one.name, users.get(one.name, []), told, one.author, words.since(one.changed_at.isoformat()))
        for one in found
    ]
    gone = [
        _secret(name, users.get(name, []), told, "", "") for name in dict.fromkeys([*users, *told]) if name not in known
    ]
    rotate = Act(
        "Rotate the master key",
        "POST /api/secrets/rotate",
        command("secrets", "rotate"),
        "Rotate the master key? Every secret and every dead letter is wrapped with the first of HEADGATE_MASTER_KEY.",
        "The master key was rotated.",
    )
    return {
        "rows": gone + rows,
        "administers": may(holder, "administer"),
        "has_key": secrets.keyring is not None,
        "rotate": rotate,
        "command": command("secrets", "set", "NAME"),
    }


def _secret(name: str, users: list[UsedBy], told: Mapping[str, list[str]], author: str, changed: str) -> dict[str, Any]:
    named: dict[str, bool] = {}  # Whether each refers to it in its draft only.
    for one in users:
        named[one.name] = named.get(one.name, True) and one.is_draft
    ask = f"Delete the secret {name}? Its value is gone for good."
    done, as_command = f"The secret {name} is deleted.", command("secrets", "delete", name)
    return {
        "name": name,
        "users": list(named.items()),
        "targets": told.get(name, []),
        "author": author,
        "changed": changed,
        "is_missing": not author,
        "delete": Act("Delete", f"DELETE /api/secrets/{name}", as_command, ask, done, grave=True, yes="in_use"),
    }


# Tokens.


async def _tokens(node: Node, holder: Caller) -> dict[str, Any]:
    return {
        "rows": [_token(one, holder) for one in await node.tokens.all()],
        "roles": ROLES,
        "ends": {"": "never", "1": "in a day", "7": "in a week", "30": "in 30 days", "90": "in 90 days"},
        "command": command("tokens", "create", "NAME", "--role", "viewer"),
    }


def _token(one: Issued, holder: Caller) -> dict[str, Any]:
    bounds = [] if one.bounds is None else [*one.bounds.datasources, *(f"group {name}" for name in one.bounds.groups)]
    own = one.id == holder.id
    ask = f"Revoke {one.name}? It works nowhere from now on{', and you are signed out' if own else ''}."
    path, as_command = f"DELETE /api/tokens/{one.id}", command("tokens", "revoke", str(one.id))
    return {
        "id": str(one.id),
        "name": one.name,
        "role": one.role,
        "is_own": own,
        "bounds": bounds,
        "author": one.author,
        "created": words.since(one.created_at.isoformat()),
        "used": words.since(one.used_at.isoformat()) if one.used_at else "never",
        "ends": _in(one.expires_at),
        "revoke": Act("Revoke", path, as_command, ask, f"{one.name} is revoked.", grave=True, yes="last_admin"),
    }


def _in(at: datetime | None) -> str:
    if at is None:
        return "never"
    left_s = (at - datetime.fromtimestamp(unix_s(), UTC)).total_seconds()
    return f"in {words.span(left_s)}" if left_s > 0 else "over"


# What documents may reach.


async def _allowed(node: Node, holder: Caller) -> dict[str, Any]:
    found = await node.registry.allowed.all()
    rows = [
        {
            "kind": line.kind.value,
            "value": line.value,
            "author": line.author,
            "since": words.since(line.created_at.isoformat()),
            "remove": _disallow(line.kind, line.value),
        }
        for line in found
    ]
    return {
        "rows": rows,
        "kinds": [kind.value for kind in Kind],
        "administers": may(holder, "administer"),
        "command": command("allow", "add", "address", "warehouse.internal:5432"),
    }


def _disallow(kind: Kind, value: str) -> Act:
    query = urlencode({"kind": kind.value, "value": value}, quote_via=quote)
    ask = f"Take {value} off the list? What runs goes on; it is judged again when it starts next."
    as_command = command("allow", "remove", kind.value, value)
    return Act("Remove", f"DELETE /api/allowed?{query}", as_command, ask, f"{value} is off the list.", grave=True)


# Connectors, and the installation.


async def _connectors(node: Node, holder: Caller) -> dict[str, Any]:
    work = node.installs.work
    install = command("connectors", "install", "singer:tap-github")
    return {
        "rows": connector_rows(),
        "installed": [_installed(one) for one in node.installs.all()],
        "work": None
        if work is None
        else (f"{work.wanted.kind}:{work.wanted.package}", work.step, work.said, work.error),
        "administers": may(holder, "administer"),
        "install": install,
        "commands": [command("connectors", "show", "NAME"), install],
    }


def _package(work: Work) -> str:
    return f"{work.wanted.kind}:{work.wanted.package}"


def _installed(one: Installed) -> dict[str, Any]:
    name = f"{one.kind}:{one.name}"
    path = f"/api/connectors/installed/{quote(one.kind, safe='')}/{quote(one.name, safe='')}"
    ask, as_command = f"Remove {name} from the home of this node?", command("connectors", "remove", name)
    return {
        "name": name,
        "version": one.version,
        "program": one.executable,
        "since": words.ago(unix_s() - one.installed_at_s),
        "remove": Act("Remove", f"DELETE {path}", as_command, ask, f"{name} is removed.", grave=True, yes="in_use"),
    }


async def _installation(node: Node, holder: Caller) -> dict[str, Any]:
    found = await lineage_of(node)
    facts = [
        ("Installation", str(found.installation)),
        ("Era", words.count(found.era)),
        ("Server", found.system),
        ("Timeline", words.count(found.timeline)),
        ("Standbys", _standbys(found)),
        ("Release", (await node.nodes.find(str(node.incarnation))).version),
    ]
    commands = [command("installation", "show"), command("doctor")]
    return {"facts": facts, "story": _story(found), "commands": commands}


def _standbys(found: Lineage) -> str:
    if not found.standbys:
        return "none"
    return f"{found.standbys:,}, {found.synchronous:,} synchronous"


def _story(found: Lineage) -> list[str]:
    """The history in words."""
    if found.era:
        broke = "once" if found.era == 1 else f"{found.era:,} times"
        lines = [
            f"The registry's history broke {broke}: a standby that lagged took over, or a backup was restored. Each "
            "time a new era began, so that nothing of the lost time can be mistaken for what came after it.",
        ]
    else:
        lines = ["The registry's history was never broken: this is the era in which it began."]
    if found.standbys and found.synchronous:
        lines.append("A synchronous standby has every commit before it is answered: its takeover loses nothing.")
    elif found.standbys:
        lines.append("No standby is synchronous: a takeover may lose the last moments, and begins a new era.")
    else:
        lines.append("No standby follows this server: if it is lost, so is what was written since the last backup.")
    return lines


VALUES: dict[str, Values] = {
    "/settings/secrets": _secrets,
    "/settings/tokens": _tokens,
    "/settings/allowed": _allowed,
    "/settings/connectors": _connectors,
    "/settings/notifications": notifications.values,
    "/settings/installation": _installation,
}
