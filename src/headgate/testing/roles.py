"""The page that shows who may do what, from the table of `core.access` and the routes that name its actions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from litestar.datastructures import State
from litestar.routes import HTTPRoute

from headgate.core.access import ROLES, RULES, Action, Rule, Scope
from headgate.web.app import make_api
from headgate.web.auth import Needs

# Doors that are no routes of the framework.
DOORS: dict[tuple[str, str], Action] = {
    ("POST", "/hooks/{datasource}"): "send",
    ("WebSocket", "/push"): "send",
    ("WebSocket", "/groups"): "send",
}

# Open to anyone: what they answer without a token says nothing, or is the way to sign in.
OPEN = frozenset(
    {
        ("GET", "/api/installation"),
        ("GET", "/healthz"),
        ("HEAD", "/healthz"),
        ("GET", "/readyz"),
        ("HEAD", "/readyz"),
        ("POST", "/login"),
        ("POST", "/logout"),
        ("GET", "/static/{name}"),
    }
)

ALIASES = "/api/schema/"  # The framework's other names for the document at /api/schema.

_BOUNDS = {Scope.NONE: "yes", Scope.LIST: "what it names", Scope.ONE: "if it names it", Scope.ALL: "no"}


@dataclass(frozen=True, slots=True)
class Line:
    """One path of a node with one method."""

    method: str
    path: str
    handler: Any
    rule: Rule | None  # None: no table says who may; it must be open to anyone.


def lines() -> Iterator[Line]:
    """Every path of the framework's, as it is served."""
    for route in make_api(None, State()).routes:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            for method in sorted(handler.http_methods - {"OPTIONS"}):
                yield Line(str(method), path, handler, rule_of(handler))


def rule_of(handler: Any) -> Rule | None:
    """The rule that a handler follows: as a guard, or as a page of the console."""
    needs = [one for one in (*handler.resolve_guards(), handler.opt.get("needs")) if isinstance(one, Needs)]
    return RULES[needs[0].action] if needs else None


def matrix() -> list[tuple[str, ...]]:
    """Path, method, each role, and a token with bounds."""
    rules = {(line.path, line.method): line.rule for line in lines() if not line.path.startswith(ALIASES)}
    rules |= {(path, method): RULES[action] for (method, path), action in DOORS.items()}
    return [(f"`{path}`", method, *_cells(rules[path, method])) for path, method in sorted(rules)]


def _cells(rule: Rule | None) -> list[str]:
    if rule is None:
        return ["open"] * len(ROLES) + ["open"]
    return ["yes" if role in rule.roles else "" for role in ROLES] + [_BOUNDS[rule.scope]]
