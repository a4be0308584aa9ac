"""A datasource's versions: who made which, what became of it, and how two of them differ, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any
from urllib.parse import quote

from litestar import Response, get

from headgate.core.access import Caller, OfDatasource, may
from headgate.datasources.documents import apart, write_plain
from headgate.runtime.node import Node
from headgate.store.datasources import Version
from headgate.web.api import views
from headgate.web.console import words
from headgate.web.console.acts import Act, command, json
from headgate.web.console.datasource import SEE, shown
from headgate.web.console.session import Req, signed_in

MARKS = {"draft": "starting", "published": "ok", "superseded": "stopped", "rejected": "error"}
MOST = 200
AROUND = 3  # Lines that did not change, around those that did.
MOST_COMPARED = 1000  # Lines of either text. Of longer ones, all between the first and the last difference differs.
MOST_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class Line:
    """A line of two texts, next to each other."""

    kind: str  # same, changed, added, removed or gap.
    before: str
    after: str


GAP = Line("gap", "⋯", "⋯")


def side_by_side(before: str, after: str) -> list[Line]:
    """How the texts differ; long stretches that do not are left out."""
    old, new = before.splitlines(), after.splitlines()
    found: list[Line] = []
    for tag, first, last, start, end in _opcodes(old, new):
        left, right = old[first:last], new[start:end]
        if tag == "equal":
            found += [Line("same", one, one) for one in left]
            continue
        for number in range(max(len(left), len(right))):
            one = left[number] if number < len(left) else None
            two = right[number] if number < len(right) else None
            kind = "changed" if one is not None and two is not None else "added" if one is None else "removed"
            found.append(Line(kind, one or "", two or ""))
    near = _near_changes(found)
    return near if len(near) <= MOST_SHOWN else [*near[:MOST_SHOWN], GAP]


def _opcodes(old: list[str], new: list[str]) -> Sequence[tuple[str, int, int, int, int]]:
    """Which lines are equal, as `difflib` says it; what that costs rises with the square of the length, or faster."""
    if max(len(old), len(new)) <= MOST_COMPARED:
        return SequenceMatcher(None, old, new).get_opcodes()
    shortest = min(len(old), len(new))
    head = next((at for at in range(shortest) if old[at] != new[at]), shortest)
    tail = next((at for at in range(shortest - head) if old[-1 - at] != new[-1 - at]), shortest - head)
    ends = len(old) - tail, len(new) - tail
    return [
        ("equal", 0, head, 0, head),
        ("replace", head, ends[0], head, ends[1]),
        ("equal", ends[0], len(old), ends[1], len(new)),
    ]


def _near_changes(lines: list[Line]) -> list[Line]:
    changed = [number for number, line in enumerate(lines) if line.kind != "same"]
    kept = {near for number in changed for near in range(number - AROUND, number + AROUND + 1)}
    found: list[Line] = []
    for number, line in enumerate(lines):
        if number in kept:
            found.append(line)
        elif not found or found[-1].kind != "gap":
            found.append(GAP)
    return found


@get("/datasources/{name:str}/versions", include_in_schema=False, needs=SEE)
async def versions_page(node: Node, request: Req, name: str, old: int = 0, new: int = 0) -> Response[Any]:
    """All of them, and how two of them differ."""
    return await signed_in(request, lambda holder: _versions(node, holder, name, old, new))


async def _versions(node: Node, holder: Caller, name: str, old: int, new: int) -> Response[str]:
    found = await node.registry.get(name)
    versions = (await node.registry.datasources.versions(found.id))[-MOST:]
    texts = {one.number: one for one in versions}
    numbers = sorted(texts)
    after = texts.get(new) or (texts[numbers[-1]] if numbers else None)
    before = texts.get(old) or _before(texts, after)
    operates = may(holder, "operate", OfDatasource(found.name))
    draft = next((one for one in versions if one.status == "draft"), None)
    return await shown(
        node,
        holder,
        name,
        "versions.html",
        tab="versions",
        rows=[_row(found.name, one, operates, found.running_version) for one in reversed(versions)],
        numbers=numbers,
        before=before.number if before else None,
        after=after.number if after else None,
        lines=[] if after is None else await apart(_lines, before, after),
        publish=_publish(found.name, draft) if operates and draft else None,
        diff_command=command("ds", "diff", found.name),
    )


def _before(texts: dict[int, Version], after: Version | None) -> Version | None:
    earlier = [number for number in texts if after is not None and number < after.number]
    return texts[max(earlier)] if earlier else None


def _lines(before: Version | None, after: Version) -> list[Line]:
    old = write_plain(views.document(before)) if before is not None else ""
    return side_by_side(old, write_plain(views.document(after)))


def _row(name: str, one: Version, operates: bool, running: int | None) -> dict[str, Any]:
    can_return = operates and one.status in ("superseded", "rejected")
    rollback = Act(
        "Roll back to it",
        f"POST /api/datasources/{quote(name)}/rollback",
        command("ds", "rollback", name, one.number),
        ask=f"Publish version {one.number} of {name} again?",
        done="It is published under a new number.",
        body=json({"version": one.number}),
    )
    return {
        "number": one.number,
        "status": one.status,
        "mark": MARKS.get(one.status, "stopped"),
        "runs": one.number == running,
        "author": one.author,
        "ago": words.since(one.created_at.isoformat()),
        "reason": one.reason or "",
        "rollback": rollback if can_return else None,
    }


def _publish(name: str, draft: Version) -> Act:
    return Act(
        "Publish the draft",
        f"POST /api/datasources/{quote(name)}/publish",
        command("ds", "publish", name),
        ask=f"Publish version {draft.number} of {name}? Its differences are on this page.",
        done="Published.",
        body=json({"hash": draft.content.hash}),
    )
