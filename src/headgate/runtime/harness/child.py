"""The process of one test: takes its job, gives up its rights, runs the version, and says what became of it.

Everything that the job names is imported before rights are given up, because the user that it becomes may not be able
to read the installation.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import pkgutil
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import msgspec
import structlog

from headgate.connectors import plugins
from headgate.connectors.guard import Guard
from headgate.datasources import functions
from headgate.errors import HeadgateError
from headgate.hidden import hide, remember
from headgate.runtime.harness import limits, outside
from headgate.runtime.harness.doorways import Dial
from headgate.runtime.harness.jobs import run_job
from headgate.runtime.harness.safe import safe
from headgate.runtime.harness.wire import (
    HEAD_BYTES,
    MOST_JOB_BYTES,
    Finished,
    Job,
    Message,
    Request,
    Said,
    Stage,
    Trouble,
    length_of,
    pack,
)
from headgate.runtime.streams.sides import failure_of

MOST_LINES = 500


def begin(request: Request, job: int, output: int, doorways: int) -> None:
    """Be the process, and never return."""
    code = 1
    try:
        os.setpgid(0, 0)
        _only(job, output, doorways)
        wire, asking = socket.socket(fileno=job), socket.socket(fileno=doorways)
        found = _receive(wire)
        _import(found)
        _import_functions(found)
        random.seed()
        has_changed = limits.confine(request.limits, request.user)
        dial = Dial(asking, found.doorways)
        _run(found, lambda message: wire.sendall(pack(message)), request, dial, has_changed=has_changed)
        code = 0
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _only(job: int, output: int, doorways: int) -> None:
    """No descriptor but those for the job and the doorways, and the output for the three that every program has."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)
    begin = 3
    for kept in sorted((job, doorways)):
        os.closerange(begin, kept)
        begin = kept + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _receive(wire: socket.socket) -> Job:
    length = length_of(_exactly(wire, HEAD_BYTES))
    assert length <= MOST_JOB_BYTES, "a node sends no such job"
    return msgspec.json.decode(_exactly(wire, length), type=Job)


def _exactly(wire: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        data = wire.recv(min(1 << 20, length - len(found)))
        if not data:
            os._exit(0)  # The node is gone, and nobody wants an answer.
        found += data
    return bytes(found)


def _import(job: Job) -> None:
    """The connectors of the job, with all of their modules if they are somebody else's."""
    for section in (job.content.source, job.content.sink):
        name = str(section.get("type"))
        with contextlib.suppress(HeadgateError):
            plugins.get(name)  # What is wrong with it is said when it is prepared.
            module = importlib.import_module(plugins.module_of(name))
            if not module.__name__.startswith("headgate."):
                for one in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
                    with contextlib.suppress(Exception):
                        importlib.import_module(one.name)


def _import_functions(job: Job) -> None:
    """Those that mappings name. What is wrong with one is said when it is prepared."""
    for mapping in (job.content.mapping, job.published_mapping):
        name = (mapping or {}).get("python")
        if isinstance(name, str):
            with contextlib.suppress(HeadgateError):
                functions.load_here(name, job.guard.guard())


def _run(job: Job, send: Callable[[Message], None], request: Request, dial: Dial, *, has_changed: bool) -> None:
    for value in job.secrets.values():
        remember(value)
    guards: list[Guard] = [outside.watched(job.source_guard.guard())]
    guards.append(outside.dialling(job.sink_guard.guard(), dial))
    outside.wall_off(guards, has_network=request.has_network)
    log = _logger(send)
    try:
        send(Stage("preparing"))
        send(asyncio.run(run_job(job, (guards[0], guards[1]), log, send)))
    except MemoryError:
        send(Trouble("", "bug", "it ran out of memory"))
    except Exception as error:
        found = failure_of(error)
        send(Trouble("", str(found.cause), found.message, _hint(error, request, has_changed=has_changed)))
        send(Finished())


def _hint(error: Exception, request: Request, *, has_changed: bool) -> str:
    is_denied = isinstance(error, ImportError | PermissionError) or "Permission denied" in str(error)
    if not has_changed or not is_denied:
        return ""
    return f"the test runs as the user {request.user}, who may not be able to read it"


# What connectors log.


def _logger(send: Callable[[Message], None]) -> Any:
    left = iter(range(MOST_LINES))

    def keep(logger: Any, method: str, line: MutableMapping[str, Any]) -> str:
        fields = {key: str(safe(value)) for key, value in line.items() if key not in ("event", "exc_info")}
        _say(send, left, method, str(line.get("event", "")), fields)
        raise structlog.DropEvent

    logging.getLogger().addHandler(_Handler(send, left))
    logging.getLogger().setLevel(logging.INFO)
    structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    return structlog.get_logger()


class _Handler(logging.Handler):
    """What libraries log."""

    def __init__(self, send: Callable[[Message], None], left: Iterator[int]) -> None:
        super().__init__()
        self._send = send
        self._left = left

    def emit(self, record: logging.LogRecord) -> None:
        _say(self._send, self._left, record.levelname.lower(), record.getMessage(), {"logger": record.name})


def _say(send: Callable[[Message], None], left: Iterator[int], level: str, text: str, fields: dict[str, str]) -> None:
    if next(left, None) is not None:
        send(Said(level, hide(text)[:2000], {key: hide(value)[:500] for key, value in fields.items()}))
