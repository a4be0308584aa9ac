"""How a command ends: its exit code, and the line on stderr that says what went wrong.

Codes are for scripts: 0 done, 1 failed, 2 usage, 3 not found or not valid, 4 refused. As with other programs, Ctrl-C is
130 and a reader that went away is 141; neither says anything. Nobody ever sees a traceback: for a bug the line names
the place instead.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from headgate.cli.output import complain
from headgate.errors import Busy, ConfigError, Forbidden, HeadgateError, NotFound, Refused, Unauthorized
from headgate.hidden import hide

FAILED = 1
USAGE = 2
NOT_FOUND = 3
REFUSED = 4
INTERRUPTED = 130

_CODES: dict[type[HeadgateError], int] = {
    NotFound: NOT_FOUND,
    ConfigError: NOT_FOUND,
    Refused: REFUSED,
    Busy: REFUSED,
    Unauthorized: REFUSED,
    Forbidden: REFUSED,
}


def code_of(error: HeadgateError) -> int:
    """The exit code that this error means."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), FAILED)


def report(error: HeadgateError) -> int:
    """Say on stderr what is wrong; several problems get a line each. Returns the exit code."""
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        complain(f"headgate: {len(error.problems)} problems")
        for problem in error.problems:
            complain(hide(f"  {problem}"))
    elif isinstance(error, ConfigError):
        complain(hide(f"headgate: {error.problems[0] if error.problems else error.message}"))
    else:
        complain(hide(f"headgate: {error.message}" + (f" ({error.hint})" if error.hint else "")))
        for problem in error.problems if isinstance(error, Refused) else ():
            complain(hide(f"  {problem}"))
    return code_of(error)


def guarded(run: Callable[[], Any]) -> int:
    """Run the command line, and turn every way it can end into an exit code."""
    try:
        result = run()
    except HeadgateError as error:
        return report(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        if hasattr(error, "format_message"):
            return _usage(error)
        text = f"headgate: {type(error).__name__}: {error} (a bug, at {_place(error)}; please report it)"
        complain(hide(text))
        return FAILED
    return result if isinstance(result, int) else 0


def _usage(error: Any) -> int:
    """What the parser found, in the same form as everything else."""
    message = str(error.format_message()).rstrip(".")
    where = error.ctx.command_path if getattr(error, "ctx", None) else "headgate"
    complain(f"headgate: {message[:1].lower()}{message[1:]} ({where} --help)")
    return int(getattr(error, "exit_code", USAGE))


def _place(error: Exception) -> str:
    """The innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "headgate" in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('headgate/')[2]}:{ours[-1].lineno}"


def tolerate_any_terminal() -> None:
    """A terminal that cannot show a character shows another one instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
