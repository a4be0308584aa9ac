"""What the documents of this installation may reach, from this node.

An admin's lists bound what a document names. A version that an admin published is *trusted*: what is written in it may
be reached. What a secret's URL names may be reached as well, because an admin wrote it. The settings of a node narrow
all of these for that node, and its own files are out of reach for everything that a document names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headgate.config import FILE, Settings
from headgate.connectors.api import SinkKind, SourceKind
from headgate.connectors.guard import Bound, Guard
from headgate.connectors.places import Place
from headgate.core.reach import (
    AddressRule,
    Kind,
    Reach,
    address_of,
    folder_from_text,
    module_from_text,
    network_of,
    rule_from_text,
)
from headgate.datasources.prepared import Checked, Prepared, SinkSide
from headgate.errors import ConfigError, Problem
from headgate.store.allowed import Line
from headgate.store.datasources import Content

_PARSE: Mapping[Kind, Callable[[str], object]] = {
    Kind.FOLDER: folder_from_text,
    Kind.ADDRESS: rule_from_text,
    Kind.MODULE: module_from_text,
}
_FORMS = {
    Kind.FOLDER: "such as /data/orders; a relative one counts from where each node was started",
    Kind.ADDRESS: "such as db.example.com:5432, 10.0.0.0/8:5432 or [fd00::]/8:*",
    Kind.MODULE: "such as mypackage.storages",
}


@dataclass(frozen=True, slots=True)
class NodeReach:
    """What the settings of a node leave."""

    bound: Bound | None = None  # None: they narrow nothing.
    never: tuple[str, ...] = ()  # The node's own files, resolved.
    start: str = field(default_factory=os.getcwd)  # Where it was started.

    @classmethod
    def of(cls, settings: Settings) -> NodeReach:
        """Those of a node that is starting."""
        own = [settings.home, Path(FILE), settings.registry_file, settings.tls_key]
        start = os.getcwd()
        reach = Reach(
            None if settings.files is None else tuple(_folders(start, _split(settings.files))),
            None if settings.addresses is None else tuple(map(rule_from_text, _split(settings.addresses))),
            None if settings.modules is None else tuple(_split(settings.modules)),
        )
        bound = None if reach == Reach() else Bound(reach, is_nodes=True)
        return cls(bound, tuple(os.path.realpath(path) for path in own if path is not None), start)


@dataclass(frozen=True, slots=True)
class Reaching:
    """The lists as they are now, as this node sees them."""

    lists: Reach
    node: NodeReach

    @classmethod
    def of(cls, lines: Iterable[Line], node: NodeReach) -> Reaching:
        """From the lines of the lists."""
        by_kind: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        for line in lines:
            by_kind[line.kind].append(line.value)
        rules = tuple(map(rule_from_text, by_kind[Kind.ADDRESS]))
        return cls(Reach(tuple(_folders(node.start, by_kind[Kind.FOLDER])), rules, tuple(by_kind[Kind.MODULE])), node)

    def guard(self, *, is_trusted: bool) -> Guard:
        """For what somebody names, who is an admin or is not."""
        return self._guard(None if is_trusted else self.lists)

    def secret_guard(self) -> Guard:
        """For what a secret's URL names: it counts as it stands, but this node connects to nothing that its own
        settings leave out."""
        bound = self.node.bound
        kept = None if bound is None else replace(bound, reach=Reach(addresses=bound.reach.addresses))
        return Guard(() if kept is None else (kept,))

    def guarded(self, prepared: Prepared, content: Content, *, is_trusted: bool) -> Prepared:
        """A version with the guards of its source and its sink."""
        source = prepared.source_kind.reaches(prepared.source_options)
        sink = prepared.sink_kind.reaches(prepared.sink_options)
        return replace(
            prepared,
            source_guard=self._side(source, content.source, is_trusted),
            sink_guard=self._side(sink, content.sink, is_trusted),
        )

    def guarded_sink(self, sink: SinkSide, content: Content, *, is_trusted: bool) -> SinkSide:
        """The sink of a version with its guard."""
        return replace(sink, guard=self._side(sink.kind.reaches(sink.options), content.sink, is_trusted))

    def problems(self, checked: Checked, content: Content, path: str, *, is_trusted: bool) -> list[Problem]:
        """What a document's sides name that may not be reached, as far as their options are known."""
        at = f"{path}." if path else ""
        guard, found = self.guard(is_trusted=is_trusted), []
        for side, raw, connector, options in (
            ("source", content.source, checked.source, checked.source_options),
            ("sink", content.sink, checked.sink, checked.sink_options),
        ):
            kind = None if connector is None else connector.source if side == "source" else connector.sink
            is_whole = not any(problem.path.startswith(f"{at}{side}.") for problem in checked.problems)
            for place in () if kind is None or options is None else _named(kind, options, is_whole=is_whole):
                error = None if _is_secret(raw, place.option) else guard.problem(place)
                if error is not None:
                    where = ".".join(part for part in (f"{at}{side}", place.option) if part)
                    found.append(Problem(where, error.message, error.hint))
        return found

    def _side(self, places: Sequence[Place], raw: Mapping[str, Any], is_trusted: bool) -> Guard:
        from_secrets = [place for place in places if _is_secret(raw, place.option)]
        if places and len(from_secrets) == len(places):
            return self.secret_guard()
        if is_trusted:
            return self._guard(None)
        rules = tuple(_rule(place) for place in from_secrets if place.kind is Kind.ADDRESS)
        return self._guard(replace(self.lists, addresses=(*(self.lists.addresses or ()), *rules)))

    def _guard(self, lists: Reach | None) -> Guard:
        bounds = (() if lists is None else (Bound(lists),)) + (() if self.node.bound is None else (self.node.bound,))
        return Guard(bounds, self.node.never)


def checked(kind: Kind, value: str) -> str:
    """A line for the lists, as it is kept. Raises ConfigError."""
    try:
        _PARSE[kind](value)
    except ValueError as error:
        raise ConfigError([Problem("value", f"{value[:200]!r} {error}", _FORMS[kind])]) from None
    return folder_from_text(value) if kind is Kind.FOLDER else value.strip().lower() if kind is Kind.ADDRESS else value


def _folders(start: str, folders: Iterable[str]) -> list[str]:
    """Resolved. A node that was started in the root has no folder of its start: all files must be somebody's word."""
    found = ((folder, os.path.realpath(os.path.join(start, os.path.expanduser(folder)))) for folder in folders)
    return [resolved for folder, resolved in found if resolved != "/" or folder == "/"]


def _split(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _named(kind: SourceKind | SinkKind, options: Any, *, is_whole: bool) -> Sequence[Place]:
    """What options name. Of some that are not whole, the connector may not be able to tell."""
    try:
        return list(kind.reaches(options))
    except (AttributeError, TypeError, ValueError):
        if is_whole:
            raise
        return ()


def _rule(place: Place) -> AddressRule:
    address = address_of(place.text)
    network = None if address is None else network_of(address)
    return AddressRule("" if network else place.text.lower().rstrip("."), network, place.port or None, is_trusted=True)


def _is_secret(raw: Any, option: str) -> bool:
    """Whether an option's value came from a secret: it, or what it is part of, is `{$secret: NAME}` in the document."""
    for part in option.split("."):
        if isinstance(raw, dict) and set(raw) == {"$secret"}:
            return True
        if isinstance(raw, list):
            raw = raw[int(part)] if part.isdigit() and int(part) < len(raw) else None
        else:
            raw = raw.get(part) if isinstance(raw, dict) else None
    return isinstance(raw, dict) and set(raw) == {"$secret"}
