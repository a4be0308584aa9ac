"""What a page's buttons do: a call of the API, what is asked before it, and the command that does the same.

`act.js` performs it, `acts.html` draws it. What a reader may not do has no button; the API refuses it all the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Act:
    """One button."""

    label: str
    act: str  # The method and the path.
    command: str = ""
    ask: str = ""  # Asked first.
    done: str = ""  # Said afterwards.
    body: str = ""  # JSON.
    then: str = ""  # Where to go afterwards.
    grave: bool = False  # It cannot be taken back.
    yes: str = ""  # Codes of refusals that the reader may overrule.
    yes_in_body: bool = False  # Where the API takes the yes.


def json(body: Mapping[str, Any]) -> str:
    """A body as it is sent."""
    return msgspec.json.encode(body, enc_hook=str).decode()


def command(*words: str | int) -> str:
    """`headgate` with these words, each quoted as a shell needs it. A word may be anybody's text."""
    return shlex.join(["headgate", *map(str, words)])
