"""Mapping on the event loop: a few milliseconds at a time, and records that take longer in a thread.

The core says where a slice ends and which record is dear (`core.mapping.prices`). Dear records of all streams share one
thread: a sender of many of them waits behind them, and others share the interpreter with one such record at most. A
mapping that calls a function in Python is run in threads altogether, since each call waits for the function's process
(`datasources.hosted`); these are others (`runtime.streams.threads`), so that only such mappings wait for each other.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headgate.core.mapping.document import Mapped, Mapping
from headgate.core.mapping.python import FunctionUnavailableError
from headgate.errors import Cause, ConnectorError
from headgate.runtime.streams.threads import Threads

PYTHON_AT_ONCE = 4
_thread = ThreadPoolExecutor(1, "mapping")  # It starts with the first dear record.
_python = Threads(PYTHON_AT_ONCE, "mapping-python")


async def map_all(mapping: Mapping, records: list[Any], meta: list[Any] | None = None) -> Mapped:
    """Map a batch, and let others have their turn after each slice."""
    if mapping.calls_python:
        try:
            return await _python.run(lambda: mapping.apply(records, meta))
        except FunctionUnavailableError as error:
            raise ConnectorError(error.said, cause=Cause.CONFIG, hint=error.hint) from None
    mapped = Mapped()
    done = 0
    while True:
        before, done = done, mapping.slice(records, meta, done, mapped)
        if done == len(records):
            return mapped
        if done == before:
            loop = asyncio.get_running_loop()
            done = await loop.run_in_executor(_thread, mapping.apart, records, meta, done, mapped)
        else:
            await asyncio.sleep(0)
