"""`headgate ds create|edit|validate|publish|rollback|diff`: documents from first draft to published version."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli import documents
from headgate.cli.call import Call, Name, checked, command, datasource
from headgate.cli.client import Reply
from headgate.cli.documents import DocumentFile
from headgate.cli.ds import app
from headgate.cli.failures import NOT_FOUND
from headgate.cli.output import changes, complain, to_yaml
from headgate.errors import ConfigError, HeadgateError, Problem
from headgate.text import counted

if TYPE_CHECKING:
    from headgate.web.bodies import datasources as bodies

Version = Annotated[int, typer.Argument(metavar="VERSION", help="The number of a version that was published.")]
Hash = Annotated[
    str | None, typer.Option("--hash", metavar="HASH", help="Publish only if the draft is still the one of this hash.")
]
Connect = Annotated[bool, typer.Option("--connect", help="Also connect to its source and its sink.")]
Accept = Annotated[
    bool,
    typer.Option("--accept", help="Even if it changes what fixtures expect; they expect the new results then."),
]
Side = Annotated[str | None, typer.Argument(help="A number, `published` or `draft`.")]


@command(app, "create")
def create(
    call: Call,
    name: Name,
    file: Annotated[str, typer.Option("--file", "-f", metavar="FILE", help="YAML or JSON; - is stdin.")],
) -> None:
    """Create a datasource with a draft. It runs once it is published."""
    from headgate.web.bodies.datasources import Datasource

    document = documents.read_one(file, checked_new(name))
    document.pop("fixtures", None)  # They come with a file that is applied, or with a test.
    found = call.node.post("/api/datasources", Datasource, {**document, "name": name})
    call.say(found.sent, f"created {name} with a draft (publish it: headgate ds publish {name})")


@command(app, "edit")
def edit(call: Call, name: Name, file: DocumentFile = None) -> None:
    """Write the draft: from a file, or in $EDITOR."""
    from headgate.web.bodies import datasources as bodies

    if file is not None:
        written = call.node.put(datasource(name, "draft"), bodies.Version, _content(documents.read_one(file, name)))
    else:
        edited = _edit(call, name)
        if edited is None:
            return
        written = edited
    draft = written.value
    call.say(written.sent, f"draft {draft.number} of {name}, hash {draft.hash} (headgate ds publish {name})")


@command(app, "validate")
def validate(
    call: Call,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The datasource.")] = None,
    file: DocumentFile = None,
    connect: Connect = False,
) -> None:
    """Check a draft, a document in a file, or a whole file; change nothing. An operator's check runs its fixtures."""
    from headgate.web.bodies.datasources import Changes

    if name is None and file is None:
        raise typer.BadParameter("give a NAME, a --file, or both")
    if name is None and connect:
        raise typer.BadParameter("--connect needs a NAME; headgate apply connects by itself")
    if name is None:
        assert file is not None
        call.node.post("/api/plan", Changes, {"yaml": documents.read_text(file), "file": file})
        call.say({"problems": []}, f"{file} is valid")
        return
    problems = _problems(call, name, file, connect=connect)
    if problems and not call.as_json:
        raise ConfigError(problems)
    call.say({"problems": [asdict(problem) for problem in problems]}, f"{name} is valid")
    if problems:
        raise typer.Exit(NOT_FOUND)


@command(app, "publish")
def publish(call: Call, name: Name, hash: Hash = None, accept: Accept = False, connect: Connect = False) -> None:
    """Make the draft the version that runs. Its fixtures are run first."""
    from headgate.web.bodies import datasources as bodies

    body = {"hash": hash, "accept": accept or None, "connect": connect or None}
    body = {key: value for key, value in body.items() if value is not None}
    found = call.node.post(datasource(name, "publish"), bodies.Version, body)
    call.say(found.sent, f"published version {found.value.number} of {name}")


@command(app, "rollback")
def rollback(call: Call, name: Name, version: Version) -> None:
    """Publish an old version again, under a new number."""
    from headgate.web.bodies import datasources as bodies

    found = call.node.post(datasource(name, "rollback"), bodies.Version, {"version": version})
    call.say(found.sent, f"published version {found.value.number} of {name}, the same as version {version}")


@command(app, "diff")
def diff(call: Call, name: Name, before: Side = None, after: Side = None) -> None:
    """How two versions differ; by default the published one and the draft."""
    from headgate.web.bodies.datasources import Differences

    sides = {"from": before or "published", "to": after or "draft"}

    def render(found: Differences) -> str:
        lines = changes(found.changes)
        head = f"{name}, {found.before} → {found.after}: {counted(len(lines), 'change')}"
        return "\n".join([head, *lines])

    call.relay(call.node.get(datasource(name, "diff"), Differences, **sides), render)


def checked_new(name: str) -> str:
    """A name that a new datasource may have."""
    try:
        return checked(name, "datasource", "")
    except HeadgateError:
        raise ConfigError(f"{name!r} is not a name", hint="lower case, digits, - and _; 100 at most") from None


def _problems(call: Call, name: str, file: str | None, *, connect: bool) -> list[Problem]:
    """What is wrong with a draft or a document, wherever it was found to be wrong."""
    from headgate.web.bodies.datasources import Problems

    path, reaches = datasource(name, "validate"), True if connect else None
    if file is None:
        found = call.node.post(path, Problems, None, connect=reaches)
        return [Problem(one.path, one.message, one.hint) for one in found.value.problems]
    try:
        written = documents.find_one(documents.read_text(file), file, name)
    except ConfigError as error:
        return error.problems
    if wrong := _known_here(name, written.document):
        return written.located(wrong)
    found = call.node.post(path, Problems, written.document, connect=reaches)
    return written.located([Problem(one.path, one.message, one.hint) for one in found.value.problems])


def _known_here(name: str, document: dict[str, Any]) -> list[Problem]:
    """What is wrong with a document that cannot even be sent, as far as it can be told without a node."""
    from headgate.datasources.documents import gather_one, together
    from headgate.datasources.prepared import check
    from headgate.datasources.references import Unread

    mapping = document.get("mapping")
    if isinstance(mapping, dict):  # Whether its Python module may be imported, a node decides.
        document = {**document, "mapping": {part: one for part, one in mapping.items() if part != "python"}}
    found, wrong = gather_one(name, document)
    if not wrong or found is None:
        return wrong
    return together(wrong, check(found.content, {secret: Unread() for secret in found.content.secrets}).problems)


def _content(document: dict[str, Any]) -> dict[str, Any]:
    """What of a document has versions. Whether it is enabled has none."""
    if "enabled" in document:
        complain("headgate: `enabled` is no part of a draft and stays as it is (headgate ds start, headgate ds stop)")
    if "fixtures" in document:
        complain("headgate: `fixtures` are no part of a draft (headgate apply, headgate ds test --save)")
    return {key: value for key, value in document.items() if key not in ("enabled", "fixtures")}


def _edit(call: Call, name: str) -> Reply[bodies.Version] | None:
    """Let a person edit. What they wrote is never lost: if it cannot be saved, it stays in its file."""
    from headgate.web.bodies import datasources as bodies

    found = call.node.get(datasource(name), bodies.Datasource)
    seen = found.value.draft or found.value.published
    assert seen is not None  # Every datasource has a version.
    before = to_yaml(seen.document)
    text, file = documents.edit(before, name)
    if text == before:
        file.unlink()
        call.say(found.sent["draft"] or found.sent["published"], "nothing changed")
        return None
    try:
        document = documents.pick(text, str(file), name)
        written = call.node.put(datasource(name, "draft"), bodies.Version, _content(document), expected_hash=seen.hash)
    except BaseException:
        complain(f"headgate: the draft was not written; your text is in {file}")
        raise
    file.unlink()
    return written
