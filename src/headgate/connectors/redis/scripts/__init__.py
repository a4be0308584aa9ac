"""The scripts that run in the server: each is all or nothing there, whatever becomes of us."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hiredis

from headgate.connectors.redis.errors import Answered, steering
from headgate.connectors.redis.session import ANSWER_S, REPLY_BYTES, Session, Word
from headgate.errors import Fenced


@dataclass(frozen=True, slots=True)
class Script:
    """One of them. The server knows it by its hash once it has seen it, and may forget it again."""

    text: str
    hash: str

    async def run(
        self,
        session: Session,
        keys: list[str] | list[bytes],
        *values: Word,
        most_bytes: int = REPLY_BYTES,
        within_s: float = ANSWER_S,
    ) -> Any:
        """What it returns. `Fenced` if it says so."""
        words = (len(keys), *keys, *values)
        reply: Any = None
        for command in (("EVALSHA", self.hash), ("EVAL", self.text)):
            (reply,) = await session.answers([(*command, *words)], most_bytes=most_bytes, within_s=within_s)
            if not (isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")):
                break
        if isinstance(reply, hiredis.ReplyError):
            answer = Answered.of(reply)
            if answer.code == "FENCED":
                raise Fenced(f"another run has the stream: {answer.text.removeprefix('FENCED ')}")
            raise steering(answer, session.name)
        return reply


def _script(name: str) -> Script:
    text = Path(__file__).with_name(f"{name}.lua").read_text()
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


ENTRY = _script("entry")
OPEN = _script("open")
TAKE = _script("take")
TAKE_BEGIN = _script("take_begin")
TAKE_END = _script("take_end")
WRITE = _script("write")
