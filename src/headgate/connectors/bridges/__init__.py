"""Bridges to connectors that others have written: taps of Singer, Python sources of Airbyte, sources of dlt.

Each is a program in an environment that is its own (`installed`), and runs as a child of the node (`child`). What it
says becomes records and positions (`running`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.connectors.api import Connector, Context, Position, Source, SourceKind
from headgate.connectors.bridges.installed import Home, Installed
from headgate.connectors.bridges.installing import Installer, Work
from headgate.connectors.bridges.options import AirbyteOptions, BridgeOptions, DltOptions, SingerOptions
from headgate.connectors.bridges.requirement import normalized, wanted_from_texts
from headgate.connectors.places import Place
from headgate.core.reach import Kind as ReachKind

__all__ = ["AIRBYTE", "DLT", "SINGER", "Home", "Installed", "Installer", "Work", "uses", "wanted_from_texts"]


def uses(source: Mapping[str, object], one: Installed) -> bool:
    """Whether a document's source reads with this connector."""
    if source.get("type") != one.kind:
        return False
    words = [source.get(name) for name in ("tap", "source", "package")]
    module = str(source.get("resource", "")).partition(":")[0].partition(".")[0]
    return any(word in one.names or normalized(word) == one.name for word in [*words, module] if isinstance(word, str))


def _singer(options: SingerOptions, context: Context) -> Source:
    from headgate.connectors.bridges.running import BridgeSource
    from headgate.connectors.bridges.singer import Tap

    return BridgeSource(options, context, Tap(options, context))


def _airbyte(options: AirbyteOptions, context: Context) -> Source:
    from headgate.connectors.bridges.airbyte import AirbyteSource
    from headgate.connectors.bridges.running import BridgeSource

    return BridgeSource(options, context, AirbyteSource(options, context))


def _dlt(options: DltOptions, context: Context) -> Source:
    from headgate.connectors.bridges.dlt import DltSource
    from headgate.connectors.bridges.running import BridgeSource

    return BridgeSource(options, context, DltSource(options, context))


def _tell_move(before: Position, after: Position) -> str:
    from headgate.connectors.bridges.running import tell_move

    return tell_move(before, after)


def _reaches(options: BridgeOptions) -> Sequence[Place]:
    """The program itself: what that reaches, nobody but it decides."""
    return [Place(ReachKind.MODULE, options.module, option=options.named_by)]


PROMISE = "at least once; with a key into a sink that upserts, each row once"

SINGER = Connector(
    name="singer",
    summary="Read from any Singer tap",
    source=SourceKind(
        SingerOptions, _singer, names_streams=True, tell_move=_tell_move, reaches=_reaches, promise=PROMISE
    ),
)

AIRBYTE = Connector(
    name="airbyte",
    summary="Read from any source of Airbyte that is a Python package",
    source=SourceKind(
        AirbyteOptions, _airbyte, names_streams=True, tell_move=_tell_move, reaches=_reaches, promise=PROMISE
    ),
)

DLT = Connector(
    name="dlt",
    summary="Read from any source or resource of dlt",
    source=SourceKind(DltOptions, _dlt, names_streams=True, tell_move=_tell_move, reaches=_reaches, promise=PROMISE),
)
