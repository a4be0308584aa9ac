"""Functions in Python that mappings name, as `module:function`.

A module runs when it is imported, so it is judged first, by the guard of the document that names it. It is imported by
its name from where the node finds its other modules, in its own process (`hosted.py`): to import it may take long,
and whatever it does there, it does not do to the node. Only the process of a test calls it itself, since that is such a
process already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from headgate.connectors.guard import Guard, OutOfReach
from headgate.core.mapping.python import Function
from headgate.datasources import function_process, hosted
from headgate.errors import ConfigError
from headgate.hidden import hide

_THREADS = ThreadPoolExecutor(4, thread_name_prefix="modules")
_found_early: ContextVar[Mapping[str, ConfigError | None] | None] = ContextVar("found_early", default=None)


def load(name: str, guard: Guard) -> Function:
    """The function of this name, in another process. Raises ConfigError if it may not be used, or is none."""
    _judge(name, guard)
    found = _found_early.get() or {}
    if name not in found:
        hosted.check(name)
    elif (error := found[name]) is not None:
        raise error
    return hosted.Hosted(name)


async def import_early(mappings: Iterable[tuple[Mapping[str, Any] | None, Guard]]) -> None:
    """Have the functions that these mappings name imported, before anybody waits for one in a thread that others need.
    What is wrong with one is said when this task, or what it has done in a thread, loads it."""
    named = ((mapping.get("python"), guard) for mapping, guard in mappings if mapping is not None)
    names = list({name for name, guard in named if isinstance(name, str) and _may_be_reached(name, guard)})
    loop = asyncio.get_running_loop()
    found = await asyncio.gather(*(loop.run_in_executor(_THREADS, _problem_of, name) for name in names))
    _found_early.set(dict(zip(names, found, strict=True)))


def _may_be_reached(name: str, guard: Guard) -> bool:
    try:
        _judge(name, guard)
    except ConfigError:
        return False
    return True


def _problem_of(name: str) -> ConfigError | None:
    try:
        hosted.check(name)
    except ConfigError as error:
        return error
    return None


def load_here(name: str, guard: Guard) -> Function:
    """The same in this process."""
    _judge(name, guard)
    try:
        return function_process.load(name)
    except function_process.NoFunctionError as error:
        raise ConfigError(hide(str(error)), hint=error.hint or hosted.INSTALL) from None


def _judge(name: str, guard: Guard) -> None:
    try:
        guard.module(name.partition(":")[0])
    except OutOfReach as error:
        raise ConfigError(error.message, hint=error.hint) from None
