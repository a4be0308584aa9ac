"""Sources and resources of dlt, <https://dlthub.com>, which a script of ours runs in their own environment.

The script (`dlt_runner`) says what they yield as a tap would. A state is what dlt itself would keep, as it writes it:
times and decimals in it stay what they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headgate.connectors.api import Context
from headgate.connectors.bridges.child import Program, output_of
from headgate.connectors.bridges.options import DltOptions
from headgate.connectors.bridges.running import failed, place_of
from headgate.connectors.bridges.singer import CATALOG_BYTES, Speech

_RUNNER = Path(__file__).with_name("dlt_runner.py")


class DltSource(Speech):
    """A source or a resource that is installed here."""

    def __init__(self, options: DltOptions, context: Context) -> None:
        super().__init__(options.resource)
        self._options = options
        self._log = context.log
        self._context = context
        self._place = place_of(options, context)

    @property
    def runs(self) -> Path:
        """Where programs have their folders."""
        return self._place.runs

    async def check(self) -> None:
        """See whether it can be made. Nothing is read."""
        program = self._made(None, only_check=True)
        code, _, said = await output_of(program, self.runs, self._log, 3600.0, CATALOG_BYTES)
        if code != 0:
            raise failed(self._options.resource, code, said)

    async def program(self, state: Any) -> Program:
        """To go on from this state."""
        self._place = place_of(self._options, self._context)  # Another version may have taken its place since.
        return self._made(state, only_check=False)

    def _made(self, state: Any, *, only_check: bool) -> Program:
        options = self._options
        job = {
            "resource": options.resource,
            "arguments": options.whole(),
            "resources": options.resources,
            "state": state,
            "only_check": only_check,
        }
        return Program(
            options.resource,
            [self._place.executable, "-I", "{runner}", "{job}"],
            self._place.environment,
            {"job": msgspec.json.encode(job), "runner": _RUNNER.read_bytes()},
            options.memory_mb,
            options.max_line_bytes,
        )
