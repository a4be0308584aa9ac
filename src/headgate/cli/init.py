"""`headgate init`: a first document, by asking for what it needs.

On a terminal it asks for the name, the two connectors and the options that they cannot do without; elsewhere flags say
it. A password is never asked for: in its place the document names a secret, and the last lines say how to set it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli import documents
from headgate.cli.call import Call
from headgate.cli.output import complain
from headgate.errors import ConfigError, HeadgateError, Problem, Refused

FILE = "headgate.yaml"
TRIES = 5  # Of one answer. Somebody who pipes something into us by mistake should not be asked forever.

Plain = dict[str, Any]


def init(
    call: Call,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="Where to write; - is stdout.")] = FILE,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The datasource.")] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="TYPE", help="Where records come from.")] = None,
    sink: Annotated[str | None, typer.Option("--sink", metavar="TYPE", help="Where they go.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="An option, such as sink.table=orders. May be repeated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Write a first document: asks for what it needs, and checks it. It asks no node."""
    if file != documents.STDIN and not force and Path(file).exists():
        raise Refused(f"{file} exists", code="exists", hint="name another file, or say --force")
    given = [_assigned(one) for one in options or ()]
    asks = sys.stdin.isatty() and not call.as_json
    name, document = _composed(name, source, sink, given, asks=asks)
    text = _written(name, document)
    steps = list(_steps(name, document, file))
    if file == documents.STDIN:
        call.say({"document": document, "name": name}, text)
        return
    try:
        Path(file).write_text(text, "utf-8")
    except OSError as error:
        raise HeadgateError(f"{file} cannot be written: {error.strerror}") from None
    call.say({"file": file, "name": name, "document": document, "next": steps}, "\n".join([f"wrote {file}", *steps]))


def _composed(
    name: str | None, source: str | None, sink: str | None, given: list[tuple[list[str], Any]], *, asks: bool
) -> tuple[str, Plain]:
    """The document, whole and right; what is wrong with it is raised."""
    name = name or (_asked("the datasource's name", "orders") if asks else None)
    source = source or (_chosen("source") if asks else None)
    sink = sink or (_chosen("sink") if asks else None)
    missing = [flag for flag, value in (("--name", name), ("--source", source), ("--sink", sink)) if not value]
    if missing:
        raise ConfigError([Problem(flag, "is missing", "on a terminal it is asked for") for flag in missing])
    assert name
    document: Plain = {"source": {"type": source}, "sink": {"type": sink}}
    for path, value in given:
        _put(document, path, value)
    for side in ("source", "sink"):
        _complete(name, document, side, asks=asks)
    problems = _problems(name, document)
    if asks and any(one.path == "mapping.key" for one in problems):
        _put(document, ["mapping", "key"], _asked("the field that identifies a record", "id"))
        problems = _problems(name, document)
    if problems:
        raise ConfigError(problems)
    order = ("source", "mapping", "sink")
    return name, {key: document[key] for key in (*order, *(set(document) - set(order))) if key in document}


def _complete(name: str, document: Plain, side: str, *, asks: bool) -> None:
    """Fill in what the connector needs and nobody has said: a secret by a name for it, anything else by asking."""
    part = document[side]
    for option, schema in _needed(side, str(part.get("type"))):
        if option in part:
            continue
        if schema.get("format") == "password":
            secret = f"{name}-{side}"
            if asks:
                secret = _asked(f"{side}.{option}: the name of the secret that holds it", secret)
            part[option] = {"$secret": secret}
        elif asks:
            said = _asked(f"{side}.{option}: {schema.get('description', '')}".rstrip(": "), None)
            part[option] = [said] if schema.get("type") == "array" else _value(said)


def _needed(side: str, type: str) -> Iterator[tuple[str, Plain]]:
    """The options that a connector cannot do without."""
    from headgate.connectors import plugins

    try:
        found = plugins.get(type)
    except HeadgateError:
        return  # The check says so, with what may have been meant.
    kind = found.source if side == "source" else found.sink
    schema = kind.model.model_json_schema() if kind else {}
    for option in schema.get("required", ()):
        yield option, schema["properties"][option]


def _problems(name: str, document: Plain) -> list[Problem]:
    """What is wrong with the document, as a node would say. Whether its secrets exist is not known here."""
    from headgate.datasources.documents import gather_one
    from headgate.datasources.prepared import check
    from headgate.datasources.references import Unread, secret_names

    found, problems = gather_one(name, document)
    if found is None or problems:
        return problems
    return check(found.content, {one: Unread() for one in secret_names(document)}).problems


def _written(name: str, document: Plain) -> str:
    from headgate.datasources.documents import read_one, write_yaml

    return write_yaml([read_one(name, document)])


def _steps(name: str, document: Plain, file: str) -> Iterator[str]:
    """What to do next."""
    from headgate.datasources.references import secret_names

    yield "next:"
    for secret in sorted(secret_names(document)):
        yield f"  headgate secrets set {secret}"
    yield f"  headgate apply {file}"
    yield f"  headgate explain {name}"


# What is said.


def _assigned(text: str) -> tuple[list[str], Any]:
    """`sink.table=orders`, taken apart."""
    path, sign, value = text.partition("=")
    if not sign or not all(path.split(".")):
        raise ConfigError([Problem("--set", f"{text!r} is not PATH=VALUE", "--set sink.table=orders")])
    return path.split("."), _value(value)


def _value(text: str) -> Any:
    """YAML, as in a document: `5` is a number, `{$secret: warehouse}` names a secret."""
    found = documents.parse(text, "--set") if text else ""
    return text if found is None else found


def _put(document: Plain, path: list[str], value: Any) -> None:
    for key in path[:-1]:
        inner = document.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError([Problem("--set", f"{'.'.join(path)} leads into what is no mapping")])
        document = inner
    document[path[-1]] = value


def _asked(question: str, default: str | None) -> str:
    return str(typer.prompt(question, default=default, err=True)).strip()


def _chosen(side: str) -> str:
    """One of the connectors that have this side."""
    from headgate.connectors import plugins

    names = [one.name for one in plugins.all() if (one.source if side == "source" else one.sink) is not None]
    complain(f"{side}s: {', '.join(names)}")
    for _ in range(TRIES):
        if (found := _asked(f"the {side}", None)) in names:
            return found
        complain(f"{found!r} is none of them")
    raise ConfigError([Problem(f"--{side}", "is none of the connectors", ", ".join(names))])
