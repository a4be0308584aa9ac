"""The text that Prometheus reads, written in slices.

With thousands of streams the text has megabytes, so it is never made in one go: others have the event loop after every
slice. (In a thread it would hold the interpreter's lock all the same.)
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

SLICE = 500  # Lines in one go: less than a millisecond.
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its series. Its samples are made when they are written."""

    name: str  # As it stands on every line: that of a counter ends in `_total`.
    kind: str  # counter, gauge or histogram.
    help: str
    samples: Iterable[tuple[str, float]]  # What follows the name (labels, mostly), and the value.

    def lines(self) -> Iterable[str]:
        """All of it."""
        yield f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"
        for rest, value in self.samples:
            yield f"{self.name}{rest} {float(value)!r}\n"


def labelled(labels: Mapping[str, str]) -> str:
    """Labels as they follow a name."""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


def escaped(value: str) -> str:
    """The value of a label."""
    return value.translate(_ESCAPED)


async def written(families: Iterable[Family]) -> AsyncIterator[bytes]:
    """The text, slice by slice."""
    lines: list[str] = []
    for family in families:
        for line in family.lines():
            lines.append(line)
            if len(lines) == SLICE:
                yield "".join(lines).encode()
                lines.clear()
                await asyncio.sleep(0)
    yield "".join(lines).encode()


async def zipped(slices: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same for callers that take gzip: a twentieth of the size."""
    packer = zlib.compressobj(1, wbits=31)
    async for one in slices:
        if some := packer.compress(one):
            yield some
    yield packer.flush()
