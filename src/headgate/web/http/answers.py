"""Answers as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from uvicorn.server import ServerState

from headgate.web.headers import NO_STORE, NOTHING
from headgate.web.problems import encode, problem

PROBLEM = b"application/problem+json"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller is told."""

    status: int
    body: bytes
    type: bytes = PROBLEM
    headers: Sequence[tuple[bytes, bytes]] = ()


class Phrases:
    """Puts answers together. Those that stay the same for a second are made once."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._date: object = None  # The headers of every answer, which uvicorn sets once a second.
        self._made: dict[tuple[Answer, bool], bytes] = {}

    def said(self, answer: Answer, *, is_last: bool, is_head: bool) -> bytes:
        """The bytes of an answer."""
        if answer.status != 202 or is_head:
            return self._make(answer, is_last, is_head)
        if self._date is not self._state.default_headers:
            self._date = self._state.default_headers
            self._made.clear()
        found = self._made.get((answer, is_last))
        if found is None:
            found = self._made[answer, is_last] = self._make(answer, is_last, is_head)
        return found

    def refusal(self, status: int, reason: str) -> bytes:
        """The bytes of an answer after which the connection ends."""
        answer = Answer(status, encode(problem(status, reason)))
        return self._make(answer, is_last=True, is_head=False)

    def _make(self, answer: Answer, is_last: bool, is_head: bool) -> bytes:
        lines = [b"HTTP/1.1 %d %s" % (answer.status, HTTPStatus(answer.status).phrase.encode())]
        lines += [b"%s: %s" % header for header in self._state.default_headers]
        lines += [b"content-type: " + answer.type, b"content-length: %d" % len(answer.body)]
        lines += [b"%s: %s" % header for header in (NO_STORE, NOTHING, *answer.headers)]
        if is_last:
            lines.append(b"connection: close")
        return b"\r\n".join([*lines, b"", b"" if is_head else answer.body])
