"""What a program of somebody else says on its way: bounded in a node's log, and the last of it kept for when it fails.

A program may say anything, as much and as often as it likes. Of that, a line has a limit and a stretch of time has a
number of lines. Values of secrets are covered wherever they stand.
"""

from __future__ import annotations

import re
import time
from typing import Any

from headgate.connectors.bridges.lines import Lines, TooLong
from headgate.errors import Cause
from headgate.hidden import hide
from headgate.text import one_line

LONGEST = 500  # Characters of a line in the log.
LINE_BYTES = 16 * 1024  # What is longer is cut.
WINDOW_S = 10.0
IN_WINDOW = 20  # Lines that are logged in that time.
TAIL_BYTES = 16 * 1024  # Of its last words.
KEPT = 30  # Lines of them.

_AUTH = re.compile(
    r"\b40[13]\b.{0,40}(client error|unauthori[sz]ed|forbidden)|unauthori[sz]ed|authentication (failed|error)"
    r"|password authentication|access.?denied|invalid.{0,20}(credential|password|api.?key|token|secret)"
    r"|(bad|wrong) credentials|login failed|not authenticated",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"connection (refused|reset|aborted|timed out|error)|could ?n.t connect|could not connect|timed? ?out|unreachable"
    r"|name or service not known|temporary failure|getaddrinfo|name resolution|server closed the connection"
    r"|\b50[0234]\b.{0,40}(server error|gateway|unavailable)|too many requests|starting up|shutting down|broken pipe",
    re.IGNORECASE,
)
_CONFIG = re.compile(
    r"config\w* (validation|error|invalid)|invalid config|is a required property|missing required|unrecognized argument"
    r"|the following arguments are required|validation failed|does not exist|no such (file|table|option)",
    re.IGNORECASE,
)
_TRACE = re.compile(r"^(Traceback |  |\s*\^|During handling|The above exception)")


class Said:
    """What one program has said."""

    def __init__(self, log: Any, program: str) -> None:
        self._log = log
        self._program = program
        self._lines = Lines(LINE_BYTES)
        self._tail = b""  # The last of it.
        self._window_s = 0.0  # When the present one began,
        self._logged = 0  # how many lines were logged in it,
        self._unlogged_bytes = 0  # and how much was not.

    def feed(self, data: bytes) -> None:
        """Some of its standard error. Beyond what is logged, it costs next to nothing."""
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        for line in self._lines.feed(data) if self._may_log() else ():
            self._tell(line.beginning if isinstance(line, TooLong) else line)
        if not self._may_log():
            self._unlogged_bytes += len(data)

    def note(self, line: bytes) -> None:
        """A line of its standard output that is for people."""
        self._tail = (self._tail + line + b"\n")[-TAIL_BYTES:]
        if self._may_log():
            self._tell(line)
        else:
            self._unlogged_bytes += len(line)

    def end(self) -> None:
        """Nothing more comes."""
        for line in self._lines.end() if self._may_log() else ():
            self._tell(line.beginning if isinstance(line, TooLong) else line)
        self._tell_unlogged()

    def last(self, prefix: str = "") -> str:
        """Its last words, if they begin so: of a stack trace, the error at its end."""
        lines = (line for line in self._last() if not _TRACE.match(line) and line.startswith(prefix))
        return next((one_line(line, LONGEST) for line in lines), "")

    def cause(self) -> Cause | None:
        """Why it failed, as far as its last words tell."""
        for line in self._last():
            for pattern, cause in ((_AUTH, Cause.AUTH), (_NETWORK, Cause.NETWORK), (_CONFIG, Cause.CONFIG)):
                if pattern.search(line):
                    return cause
        return None

    def _last(self) -> list[str]:
        """The last lines, the very last first."""
        whole = self._tail if len(self._tail) < TAIL_BYTES else self._tail.partition(b"\n")[2]
        lines = [line for line in hide(whole.decode("utf-8", "replace")).splitlines() if line.strip()]
        return [line[: 2 * LONGEST] for line in lines[: -KEPT - 1 : -1]]

    def _may_log(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._window_s > WINDOW_S:
            self._tell_unlogged()
            self._window_s, self._logged = now_s, 0
        return self._logged < IN_WINDOW

    def _tell(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        is_for_log = bool(text.strip()) and not _TRACE.match(text)  # Of a stack trace, the error at its end will do.
        if is_for_log and self._logged < IN_WINDOW:
            self._logged += 1
            said = one_line(hide(text), LONGEST)
            self._log.info("the program of a bridge says", program=self._program, said=said)

    def _tell_unlogged(self) -> None:
        if self._unlogged_bytes:
            self._log.info("the program of a bridge says more", program=self._program, size_bytes=self._unlogged_bytes)
            self._unlogged_bytes = 0
