"""The frame of every page: where the reader is, where else to go, and what the node has to say.

*A new page*: render a template that extends `frame.html` with `framed(holder, "name.html", at="section", …)`. The first
of its section also gives the section a line in `SECTIONS`: the navigation and the keys are made of it. Who may not do
what a section's action says does not see it; the page itself refuses by the `needs` of its handler.

The template fills the blocks `title`, `head` (scripts) and `main`. What all pages share is in `parts.html` (macros) and
in `static/shell.js` (`act.js`, `command.js`, `keys.js`, `link.js`); each says at its top how it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Response

from headgate.core.access import ANYONE, Action, Caller, may
from headgate.web.console.pages import page


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the console, as the navigation has it."""

    name: str
    label: str
    path: str
    key: str  # After `g`.
    action: Action  # Who may do this sees it.


SECTIONS = (
    Section("overview", "Overview", "/", "d", "list"),
    Section("letters", "Dead letters", "/letters", "l", "operate_listed"),
    Section("streams", "Streams", "/streams", "s", "list"),
    Section("groups", "Groups", "/groups", "g", "list"),
    Section("nodes", "Nodes", "/nodes", "n", "see_all"),
    Section("dumps", "Dumps", "/dumps", "u", "list"),
    Section("events", "Events", "/events", "e", "list"),
    Section("settings", "Settings", "/settings", "t", "learn"),
)


def framed(holder: Caller, template: str, *, at: str, status: int = 200, **values: Any) -> Response[str]:
    """A page in its frame. `at` is the name of its section."""
    sections = [one for one in SECTIONS if may(holder, one.action)]
    return page(template, status=status, holder=name_of(holder), sections=sections, at=at, **values)


def missing(holder: Caller, *, at: str, title: str, text: str) -> Response[str]:
    """The page of something that is not there."""
    return framed(holder, "missing.html", at=at, status=404, title=title, text=text)


def name_of(holder: Caller) -> str:
    """What the page calls its reader. Without tokens nobody has a name."""
    return "" if holder is ANYONE else holder.name
