"""`python -m headgate.datasources.function_process NAME WIRE ALIVE`: a process with one function in it.

It imports the function, says whether that went well, and then answers call by call: with what the function made of a
record, or with why the record fails. What the function gives is judged here, because only values of records can be sent
back. The process ends when nobody has called for a while, and at once when its node does, whatever the function does.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import resource
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import cast

from headgate.awaited import readable
from headgate.core.letters import packed, unpacked
from headgate.core.mapping.mistakes import MistakeError
from headgate.core.mapping.prices import Budget
from headgate.core.mapping.python import Function, call
from headgate.text import one_line

IDLE_S = 600.0
LONGEST_BYTES = 256 * 1024 * 1024
READY, PROBLEM, MADE, FAILED = b"R", b"P", b"M", b"F"
_LENGTH = struct.Struct(">I")


# The wire: each message after its length.


def frame(body: bytes) -> bytes:
    """A message."""
    return _LENGTH.pack(len(body)) + body


def send(wire: socket.socket, message: bytes) -> None:
    """All of it."""
    wire.sendall(message)


def receive(wire: socket.socket, longest: int, wait: Callable[[], None] = lambda: None) -> bytes:
    """The next message; empty if there is none any more. `wait` returns when there is something to read."""
    head = _exactly(wire, _LENGTH.size, wait)
    if not head:
        return b""
    (length,) = _LENGTH.unpack(head)
    if length > longest:
        raise ValueError("a message is too long")
    return _exactly(wire, length, wait)


def _exactly(wire: socket.socket, length: int, wait: Callable[[], None]) -> bytes:
    found = bytearray()
    while len(found) < length:
        wait()
        data = wire.recv(min(1 << 20, length - len(found)))
        if not data:
            return b""
        found += data
    return bytes(found)


# The function.


class NoFunctionError(Exception):
    """There is no such function, or it cannot be called."""

    def __init__(self, said: str, hint: str = "") -> None:
        super().__init__(said)
        self.hint = hint


def load(name: str) -> Function:
    """Import it. Raises NoFunctionError."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except (Exception, SystemExit) as error:  # What is imported is somebody else's, and runs.
        said = f"{type(error).__name__}: {one_line(error, 200)}"
        raise NoFunctionError(f"{module} cannot be imported: {said}") from None
    if not callable(found):
        raise NoFunctionError(f"{module} has no function {function}")
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        raise NoFunctionError(f"{name} is no plain function", "def, with return")
    if not _takes_two(found):
        raise NoFunctionError(f"{name} does not take a record and its metadata", f"def {function}(record, meta):")
    return cast("Function", found)


def _takes_two(function: object) -> bool:
    try:
        inspect.signature(function).bind({}, None)  # type: ignore[arg-type]
    except TypeError:
        return False
    except ValueError:  # It is not written in Python, and has no signature.
        return True
    return True


# The process.


def main(name: str, wire: socket.socket, alive: int) -> None:
    """Answer until nobody asks."""
    threading.Thread(target=_end_with_node, args=(alive,), daemon=True).start()
    _go_first()
    try:
        function = load(name)
    except NoFunctionError as error:
        send(wire, frame(PROBLEM + f"{error}\n{error.hint}".encode("utf-8", "backslashreplace")))
        return
    send(wire, frame(READY))
    while readable([wire.fileno()], IDLE_S) and (request := receive(wire, LONGEST_BYTES)):
        send(wire, frame(_answer(function, request)))


def _answer(function: Function, request: bytes) -> bytes:
    record, meta = unpacked(request)
    try:
        made = call(function, record, meta, Budget(), many=True)
        answer = MADE + packed(made)
    except MistakeError as error:
        return FAILED + str(error).encode("utf-8", "backslashreplace")
    except (RecursionError, UnicodeEncodeError):
        return FAILED + b"the function gave a value that is nested too deeply, or text that is none"
    return answer if len(answer) <= LONGEST_BYTES else FAILED + b"the function gave more than can be kept"


def _end_with_node(alive: int) -> None:
    with contextlib.suppress(OSError):
        os.read(alive, 1)
    os._exit(1)


def _go_first() -> None:
    """If memory is short, this process goes before the node does. What it leaves behind is no core."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))
