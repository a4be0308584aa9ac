"""The acceptance suites that every connector passes, ours and yours: one for sources and sinks, one for readers and
writers. pytest and pytest-asyncio are needed."""

from headgate.testing.contract.bulk import ReaderContract, WriterContract
from headgate.testing.contract.letters import LetterSinkContract
from headgate.testing.contract.streaming import (
    AckedSourceContract,
    ForgettingSinkContract,
    SinkContract,
    SourceContract,
    SourceInPartsContract,
    TransactionalSinkContract,
)

__all__ = [
    "AckedSourceContract",
    "ForgettingSinkContract",
    "LetterSinkContract",
    "ReaderContract",
    "SinkContract",
    "SourceContract",
    "SourceInPartsContract",
    "TransactionalSinkContract",
    "WriterContract",
]
