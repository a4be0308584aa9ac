"""What bare loops share: the records, the six fields that `bench.throughput` maps, by hand, and the table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

TABLE = "(id bigint, kind text, email text, cents bigint, placed_at timestamptz, note text)"


def records(number: int) -> list[dict[str, Any]]:
    """Orders, as the generator makes them."""
    from headgate.connectors.generator import CONNECTOR, GeneratorOptions

    assert CONNECTOR.reader is not None
    history = CONNECTOR.reader.of_source(GeneratorOptions(count=number))
    assert history is not None
    return list(history.query(0, number))


def row(record: dict[str, Any]) -> tuple[Any, ...]:
    """The six fields of a record."""
    return (
        record["id"],
        record["kind"],
        record["user"]["email"].lower(),
        round(record["total"] * 100),
        datetime.fromtimestamp(record["ts"], UTC),
        record["note"] if record["note"] is not None else "none",
    )
