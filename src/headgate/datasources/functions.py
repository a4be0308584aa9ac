"""Functions in Python that mappings name, as `module:function`.

A module runs when it is imported, so it is judged first, by the guard of the document that names it. It is imported by
its name from where the node finds its other modules, and once: a node that is to see a change of it starts again.
"""

from __future__ import annotations

import importlib
import inspect
from typing import cast

from headgate.connectors.guard import Guard, OutOfReach
from headgate.core.mapping.python import Function
from headgate.errors import ConfigError
from headgate.hidden import error_said

INSTALL = "install it where every node runs; it is imported by its name"


def load(name: str, guard: Guard) -> Function:
    """The function of this name. Raises ConfigError if it may not be used, or is none."""
    module, _, function = name.partition(":")
    try:
        guard.module(module)
    except OutOfReach as error:
        raise ConfigError(error.message, hint=error.hint) from None
    try:
        found = getattr(importlib.import_module(module), function, None)
    except (Exception, SystemExit) as error:  # What is imported is somebody else's, and runs.
        said = f"{module} cannot be imported: {type(error).__name__}: {error_said(error, 200)}"
        raise ConfigError(said, hint=INSTALL) from None
    if not callable(found):
        raise ConfigError(f"{module} has no function {function}", hint=INSTALL)
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        raise ConfigError(f"{name} is no plain function", hint="def, with return")
    if not _takes_two(found):
        raise ConfigError(f"{name} does not take a record and its metadata", hint=f"def {function}(record, meta):")
    return cast("Function", found)


def _takes_two(function: object) -> bool:
    try:
        inspect.signature(function).bind({}, None)  # type: ignore[arg-type]
    except TypeError:
        return False
    except ValueError:  # It is not written in Python, and has no signature.
        return True
    return True
