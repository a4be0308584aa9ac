"""Bodies about secrets, tokens, and the node's own health."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, field

from headgate.web.bodies import Answer, Request

Role = Literal["viewer", "sender", "operator", "admin"]


class Secret(Answer):
    """A secret; never its value."""

    name: str
    author: str
    changed_at: datetime
    # Datasources, whose draft, published or running version does; and notifications.targets.NAME.
    used_by: list[str] = field(default_factory=list)


class Secrets(Answer):
    """All secrets."""

    items: list[Secret]


class PutSecret(Request):
    """A secret's value."""

    value: Annotated[str, Meta(min_length=1)]


class SecretWritten(Answer):
    """A secret, and how many datasources start again with it."""

    name: str
    restarted: int


class Rotated(Answer):
    """What rotating the master key did."""

    rewrapped: int
    stuck: list[str]  # Secrets that no key fits.
    letters: int = 0  # Dead letters whose records were rewrapped,
    letters_stuck: int = 0  # and those that no key fits.
    letters_left: int = 0  # Those whose copy in their sink still needs another key: runs rewrap them.


Reachable = Literal["folder", "address", "module"]


class AllowedLine(Answer):
    """Something that documents may reach."""

    kind: Reachable
    value: str
    author: str
    created_at: datetime


class Allowed(Answer):
    """All that documents may reach."""

    items: list[AllowedLine]


class Allow(Request):
    """One line of the lists."""

    kind: Reachable
    value: Annotated[str, Meta(min_length=1, max_length=1000)]


class Token(Answer):
    """A token, without its text."""

    id: UUID
    name: str
    role: Role
    datasources: list[str] | None  # Patterns. Null: the token has no bounds.
    groups: list[str] | None
    author: str
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None


class Tokens(Answer):
    """All tokens, oldest first."""

    items: list[Token]


class CreateToken(Request):
    """A new token."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Role = "viewer"
    datasources: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None


class NewToken(Answer):
    """A new token. Its text is here and nowhere else."""

    id: UUID
    name: str
    role: Role
    datasources: list[str] | None
    groups: list[str] | None
    expires_at: datetime | None
    token: str


class SignInLink(Answer):
    """A link that signs in to the console, once."""

    path: str  # To be put behind the address of a node.
    expires_s: int


class Alive(Answer):
    """The process answers."""

    status: Literal["ok"]


class Ready(Answer, omit_defaults=True):
    """Whether the node can do its work; with a token, what is wrong."""

    status: Literal["ok", "unavailable"]
    degraded: list[str] | None = None


class Installation(Answer):
    """Which installation a node is of."""

    installation: UUID


class Lineage(Answer):
    """Which history the registry is a part of."""

    installation: UUID
    era: int  # One more after each break of the history.
    system: str  # The server's identifier, drawn when its data were made.
    timeline: int  # Rises with every promotion and every recovery from a backup.
    standbys: int  # Servers that follow this one,
    synchronous: int  # and those of them that have each commit before it is answered.
