"""`{$secret: NAME}` in a document: where it may stand, and what must not stand written out in its place.

A secret's value goes only into an option whose type is `SecretStr`, in the option model of a connector; through unions,
lists, dicts and models inside models. Anywhere else (another option, the mapping, what the document says of itself) a
reference is a problem of the document, and its value is never read. Where it may stand, it is put in as a `SecretStr`
and never as text: a model that takes it anyway, as `Any` does, holds something that shows no value.

The other way round, a password that is written out is a problem wherever it stands, and `***` for everyone who looks.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticCustomError

from headgate.credentials import SHOWN, has_credentials, hide_credentials, is_public_url
from headgate.datasources.spots import Spot, secret_options
from headgate.errors import Problem

REFERENCE = "$secret"
UNREAD = "secret_unread"  # The type of the error that a model gets which asks for a value that is not read.

USE_SECRET = "headgate secrets set NAME, then {$secret: NAME}"
TAKE_OUT = "every reader of the registry would see it: take it out"


class Unread(SecretStr):
    """A secret whose value is not read, because the caller must learn nothing about it. A model that asks for the
    value fails, and that failure says nothing about the document."""

    def __init__(self) -> None:
        super().__init__("")

    def get_secret_value(self) -> str:
        """There is none to get."""
        raise PydanticCustomError(UNREAD, "the secret is not read")

    def __len__(self) -> int:
        raise PydanticCustomError(UNREAD, "the secret is not read")


Secrets: TypeAlias = Mapping[str, "str | Unread | None"]
"""The secrets that exist: the value of each; None: it cannot be decrypted here."""


# References.


def is_reference(value: Any) -> bool:
    """Whether this stands for a secret."""
    return isinstance(value, dict) and set(value) == {REFERENCE}


def secret_names(value: Any) -> set[str]:
    """The names that a document refers to as `{"$secret": name}`."""
    if isinstance(value, dict):
        if is_reference(value):
            return {str(value[REFERENCE])}
        return set().union(*(secret_names(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(secret_names(item) for item in value))
    return set()


@dataclass(slots=True)
class Resolved:
    """Options with secrets in place of their names."""

    options: Any
    problems: list[Problem] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)  # The paths at which there is no value to judge.


def resolve(raw: Any, secrets: Secrets, path: str, misplaced: Collection[str]) -> Resolved:
    """The options with secrets in place. What cannot be resolved is a problem; what is misplaced is not read."""
    found = Resolved(None)
    found.options = _resolve(raw, secrets, path, misplaced, found)
    return found


def _resolve(value: Any, secrets: Secrets, path: str, misplaced: Collection[str], found: Resolved) -> Any:
    if is_reference(value):
        secret = Unread() if path in misplaced else _read(str(value[REFERENCE]), secrets, path, found.problems)
        if isinstance(secret, Unread):
            found.unread.add(path)
        return secret
    if isinstance(value, dict):
        return {key: _resolve(item, secrets, f"{path}.{key}", misplaced, found) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, secrets, f"{path}.{index}", misplaced, found) for index, item in enumerate(value)]
    return value


def _read(name: str, secrets: Secrets, path: str, problems: list[Problem]) -> SecretStr:
    if name not in secrets:
        # Who may not read secrets is not told which there are.
        near = difflib.get_close_matches(
            name, [one for one, value in secrets.items() if not isinstance(value, Unread)], 1
        )
        hint = f"headgate secrets set {name}" + (f"; or did you mean {near[0]}?" if near else "")
        problems.append(Problem(path, f"secret {name!r} does not exist", hint))
        return Unread()
    value = secrets[name]
    if value is None:
        hint = "is HEADGATE_MASTER_KEY the right one?"
        problems.append(Problem(path, f"secret {name!r} cannot be decrypted here", hint))
        return Unread()
    return value if isinstance(value, Unread) else SecretStr(value)


# What a document says.


@dataclass(slots=True)
class Examined:
    """One part of a document: what is wrong with it, and how it is shown."""

    shown: Any = None
    misplaced: list[str] = field(default_factory=list)  # Paths of references that may not stand there,
    written_out: list[tuple[str, bool]] = field(default_factory=list)  # and of passwords; whether a reference may.

    def misplaced_problems(self, model: type[BaseModel] | None) -> list[Problem]:
        """In words. `model`: of the options that this part is of."""
        return [Problem(path, "no secret may stand here", _where(model)) for path in self.misplaced]

    def written_out_problems(self) -> list[Problem]:
        """In words."""
        return [
            Problem(path, "a password or key must not be written out here", USE_SECRET if takes_secret else TAKE_OUT)
            for path, takes_secret in self.written_out
        ]


def examine(raw: Any, path: str, model: type[BaseModel] | None, *, in_prose: bool = False) -> Examined:
    """Look at one part of a document: at options of this model, or at something that has no options."""
    found = Examined()
    spot = Spot() if model is None else Spot.of(model)
    found.shown = _examine(raw, spot, path, found, in_prose)
    return found


def _examine(value: Any, spot: Spot, path: str, found: Examined, in_prose: bool) -> Any:
    """The value as it is shown."""
    if is_reference(value):
        if not spot.takes_secret:
            found.misplaced.append(path)
        return value
    if isinstance(value, dict | list):
        inside = _examine_inside(value, spot, path, found, in_prose)
        is_taken = not spot.takes_secret or spot.is_open(value)
        return inside if is_taken else SHOWN  # What no model takes may hold anything.
    if value is None or isinstance(value, bool):
        return value
    text = str(value)
    if has_credentials(text, in_prose=in_prose):
        found.written_out.append((path, spot.takes_secret))
        return hide_credentials(text, in_prose=in_prose)
    if spot.takes_secret and spot.is_secret(value) and not is_public_url(text):
        found.written_out.append((path, True))
        return SHOWN
    return value


def _examine_inside(value: Any, spot: Spot, path: str, found: Examined, in_prose: bool) -> Any:
    at = f"{path}." if path else ""
    if isinstance(value, list):
        items = enumerate(zip(value, spot.items(len(value)), strict=True))
        return [_examine(item, inner, f"{at}{index}", found, in_prose) for index, (item, inner) in items]
    shown = {}
    for key, item in value.items():
        name = str(key)
        if has_credentials(name, in_prose=in_prose):
            name = hide_credentials(name, in_prose=in_prose)
            found.written_out.append((f"{at}{name}", False))
        shown[name] = _examine(item, spot.member(value, key), f"{at}{name}", found, in_prose)
    return shown


def _where(model: type[BaseModel] | None) -> str:
    if model is None:
        return "only options of a source or a sink take a secret"
    options = secret_options(model)
    return f"only these options take one: {', '.join(options)}" if options else "no option of this connector takes one"
