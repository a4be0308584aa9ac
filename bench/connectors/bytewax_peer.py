"""What Bytewax does in a benchmark: a dataflow of one worker, in an environment of its own.

    .bench/bytewax/bin/python bench/connectors/bytewax_peer.py FROM TO

JSON is read and written by msgspec, as ours is, and batches have our size. It knows nothing of Headgate.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import bytewax.operators as op  # type: ignore[import-not-found]
import msgspec
from bytewax.connectors.files import FileSink, FileSource  # type: ignore[import-not-found]
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.run import cli_main  # type: ignore[import-not-found]

BATCH = 5000

decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode


def mapped(line: str) -> tuple[str, str]:
    """The sink's key, which is always the same, and the line that it writes."""
    order = decode(line)
    fields = {
        "id": order["id"],
        "kind": order["kind"],
        "email": order["user"]["email"].lower(),
        "cents": round(order["total"] * 100),
        "placed_at": datetime.fromisoformat(order["ts"]),
        "note": order["note"] if order["note"] is not None else "none",
    }
    return "", encode(fields).decode()


def main(read: str, written: str) -> None:
    """Until all was read."""
    flow = Dataflow("files")
    lines = op.input("lines", flow, FileSource(read, batch_size=BATCH))
    op.output("written", op.map("mapped", lines, mapped), FileSink(Path(written)))
    cli_main(flow)


if __name__ == "__main__":
    main(*sys.argv[1:])
