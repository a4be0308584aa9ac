"""The public contracts between Headgate and connectors.

`streaming` is what moves records (Source, Sink), `bulk` what copies tables in chunks (Reader, Writer), `options` what a
document may say, and `plugin` how a connector presents itself. They are two contracts because they are made safe in two
ways: a stream by the fence of its epoch, a chunk by the target's ledger.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headgate.connectors.api.bulk import Reader, Writer
from headgate.connectors.api.plugin import Connector, Landing, LocalSocket, ReaderKind, SinkKind, SourceKind, WriterKind

if TYPE_CHECKING:
    from headgate.connectors.api.options import Options, identity, identity_of, mark_of, other_names
    from headgate.connectors.api.streaming import (
        INBOX_IDENTITY,
        Backlog,
        BacklogSource,
        Batch,
        Context,
        Feed,
        ForgettingSink,
        Grant,
        HasColumns,
        Inbox,
        KeyKind,
        Letter,
        LetterOutcome,
        LetterSink,
        Marked,
        Outgoing,
        Position,
        Progress,
        Received,
        Shared,
        Sink,
        Source,
        SourceStream,
        Totals,
        Unreadable,
    )

__all__ = [
    "INBOX_IDENTITY",
    "Backlog",
    "BacklogSource",
    "Batch",
    "Connector",
    "Context",
    "Feed",
    "ForgettingSink",
    "Grant",
    "HasColumns",
    "Inbox",
    "KeyKind",
    "Landing",
    "Letter",
    "LetterOutcome",
    "LetterSink",
    "LocalSocket",
    "Marked",
    "Options",
    "Outgoing",
    "Position",
    "Progress",
    "Reader",
    "ReaderKind",
    "Received",
    "Shared",
    "Sink",
    "SinkKind",
    "Source",
    "SourceKind",
    "SourceStream",
    "Totals",
    "Unreadable",
    "Writer",
    "WriterKind",
    "identity",
    "identity_of",
    "mark_of",
    "other_names",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What a dump never uses is imported when somebody asks for it: pydantic takes longer than to begin to copy."""
        for module in ("options", "streaming") if name in __all__ else ():
            found = import_module(f"{__name__}.{module}")
            if name in found.__all__:
                globals()[name] = getattr(found, name)
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
