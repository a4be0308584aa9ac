"""Spots in a document, by the option models of connectors: which of them take a secret.

A spot is what models know about a place in a document: the types that an option there may have. In a union of models
each of them knows its own; a model whose constants the document contradicts is not the one that is meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import isclass
from itertools import repeat
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, RootModel, SecretStr
from pydantic.fields import FieldInfo

DEEPEST = 5  # A model may hold itself.

Types: TypeAlias = tuple[Any, ...]
"""The types that an option may have: more than one in a union."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a document, as option models know it."""

    known: tuple[Types, ...] = ()  # What each model that knows the spot takes there. None does: no option is there.
    takes_secret: bool = field(init=False)  # Whether `{$secret: NAME}` may stand here.

    def __post_init__(self) -> None:
        object.__setattr__(self, "takes_secret", any(map(_is_secret, self._types())))

    @classmethod
    def of(cls, model: type[BaseModel]) -> Spot:
        """Where all options of this model stand."""
        return cls(((model,),))

    def is_secret(self, value: object) -> bool:
        """Whether this scalar would be the value of a secret: a model has one here, and nothing that it is besides."""
        return any(
            any(map(_is_secret, types)) and not any(one is str or value in _constants(one) for one in types)
            for types in self.known
        )

    def is_open(self, value: object) -> bool:
        """Whether a model takes a dict or a list like this here."""
        if isinstance(value, dict):
            return any(_is_model(one) or _arguments(one, Mapping) for one in self._types())
        return any(_arguments(one, Collection) for one in self._types())

    def member(self, value: Mapping[str, Any], key: str) -> Spot:
        """The spot below this key of a dict."""
        if not self.known:
            return self
        models = [one for one in self._types() if _is_model(one)]
        meant = [one for one in models if len(models) == 1 or _fits(one, value)] or models
        found = [_fields(one)[key] for one in meant if key in _fields(one)]
        dicts = [arguments for one in self._types() if (arguments := _arguments(one, Mapping))]
        return Spot((*found, *(_alternatives(arguments[-1]) for arguments in dicts)))

    def items(self, count: int) -> Iterable[Spot]:
        """The spots of a list's items. Only of a tuple are they not all alike."""
        if any(get_origin(one) is tuple for one in self._types()):
            return map(self._item, range(count))
        return repeat(self._item(0) if self.known else self, count)

    def _item(self, index: int) -> Spot:
        inner = [argument for one in self._types() for argument in _items(one, index)]
        return Spot(tuple(map(_alternatives, inner)))

    def _types(self) -> Iterator[Any]:
        return (one for types in self.known for one in types)


def secret_options(model: type[BaseModel], depth: int = 0) -> list[str]:
    """The options that take a secret, as paths."""
    found: list[str] = []
    for name, types in _fields(model).items():
        for one in _leaves(types):
            if _is_secret(one):
                found.append(name)
            elif _is_model(one) and depth < DEEPEST:
                found += [f"{name}.{inner}" for inner in secret_options(one, depth + 1)]
    return list(dict.fromkeys(found))


def _leaves(types: Types) -> Iterator[Any]:
    """The types, and those inside lists and dicts."""
    for one in types:
        inner = [
            argument
            for argument in (*_arguments(one, Mapping)[1:], *_arguments(one, Collection))
            if argument is not ...
        ]
        if not inner:
            yield one
        for argument in inner:
            yield from _leaves(_alternatives(argument))


def _arguments(one: Any, kind: type) -> tuple[Any, ...]:
    """What a dict is of, or a list, set or tuple."""
    origin = get_origin(one)
    if not (isclass(origin) and issubclass(origin, kind)):
        return ()
    return () if kind is Collection and issubclass(origin, Mapping) else get_args(one)


def _items(one: Any, index: int) -> tuple[Any, ...]:
    """The type of this item. A tuple says it for each, unless it goes on without end."""
    arguments = _arguments(one, Collection)
    if get_origin(one) is tuple and arguments[-1:] != (...,):
        return arguments[index : index + 1]
    return arguments[:1]


def _fits(model: type[BaseModel], value: Mapping[str, Any]) -> bool:
    """Whether this may be the model that is meant."""
    return all(
        value[name] in [constant for one in types for constant in _constants(one)]
        for name, types in _fields(model).items()
        if name in value and all(map(_constants, types))
    )


@cache
def _fields(model: type[BaseModel]) -> dict[str, Types]:
    """The types of a model's options, by the names that a document may give them."""
    return {
        name: _alternatives(info.annotation) for own, info in model.model_fields.items() for name in _names(own, info)
    }


def _names(own: str, info: FieldInfo) -> list[str]:
    return [own, *(name for name in (info.alias, info.validation_alias) if isinstance(name, str))]


def _alternatives(annotation: Any) -> Types:
    """The types of a union, or the one type that it is."""
    annotation = getattr(annotation, "__value__", annotation)  # The name of a type.
    origin = get_origin(annotation)
    if origin is Annotated:
        return _alternatives(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return tuple(inner for one in get_args(annotation) for inner in _alternatives(one))
    if isclass(annotation) and issubclass(annotation, RootModel):
        return _alternatives(annotation.model_fields["root"].annotation)
    return (annotation,)


def _constants(one: Any) -> tuple[Any, ...]:
    return get_args(one) if get_origin(one) is Literal else ()


def _is_secret(one: Any) -> bool:
    return isclass(one) and issubclass(one, SecretStr)


def _is_model(one: Any) -> bool:
    return isclass(one) and issubclass(one, BaseModel)
