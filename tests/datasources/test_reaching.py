"""What documents may reach from a node, by its settings and by an admin's lists."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headgate.config import Settings, load
from headgate.connectors.guard import OutOfReach
from headgate.connectors.places import Place
from headgate.core.reach import Kind
from headgate.datasources.documents import read_one
from headgate.datasources.prepared import Prepared, check, prepare
from headgate.datasources.reaching import NodeReach, Reaching, checked
from headgate.errors import ConfigError
from headgate.store.allowed import Line
from headgate.store.datasources import Content

NOW = datetime.now(UTC)
BLACKHOLE = {"type": "blackhole"}
URL = "postgresql://u@db.example.com/x"


@pytest.fixture(autouse=True)
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the node is started."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reaching(*lines: tuple[str, str], **settings: Any) -> Reaching:
    kept = [Line(Kind(kind), value, "ada", NOW) for kind, value in lines]
    return Reaching.of(kept, NodeReach.of(Settings(**settings)))


def made(document: dict[str, Any], **secrets: str) -> tuple[Prepared, Content]:
    content = read_one("orders", document).content
    return prepare(content, secrets), content


def wrong(found: Reaching, document: dict[str, Any], *, is_trusted: bool = False, **secrets: str) -> list[str]:
    _, content = made(document, **secrets)
    problems = found.problems(check(content, secrets), content, "", is_trusted=is_trusted)
    return [f"{problem.path}: {problem.message} | {problem.hint}" for problem in problems]


def files(path: str) -> dict[str, Any]:
    return {"source": {"type": "files", "path": path}, "sink": {"type": "files", "path": path + ".out"}}


def postgres(url: Any) -> dict[str, Any]:
    return {"source": {"type": "generator"}, "sink": {"type": "postgres", "url": url, "table": "t"}}


DEFAULT = ("folder", ".")


def test_by_default_only_files_where_the_node_was_started_are_reached(start: Path) -> None:
    found = reaching(DEFAULT)
    assert wrong(found, files("data/*.jsonl")) == []
    for path in ("/etc/passwd", "../x", "a/../../x", "/etc/*", str(start.parent / "x")):
        source, sink = wrong(found, files(path))
        assert source.startswith("source.path: ")
        assert "headgate allow add folder" in sink
        assert wrong(found, files(path), is_trusted=True) == []


def test_what_is_headgates_own_is_out_of_reach_for_an_admin_too(start: Path) -> None:
    (start / "link").symlink_to(start / ".headgate")
    for path in (".headgate/token", "link/token", "headgate.toml", "x/../.headgate/postgres/data/PG_VERSION"):
        for is_trusted in (False, True):
            problems = wrong(reaching(DEFAULT), files(path), is_trusted=is_trusted)
            assert "Headgate's own" in problems[0]
    (only, *_) = wrong(reaching(DEFAULT, registry="yaml:all.yaml"), files("all.yaml"), is_trusted=True)
    assert "Headgate's own" in only


@pytest.mark.parametrize(
    "url",
    [URL, "postgresql://u@2130706433/x", "postgresql:///x?host=db.example.com", "postgresql://a,db.example.com/x"],
)
def test_an_address_that_is_written_out_must_be_on_the_list(url: str) -> None:
    (problem, *_) = wrong(reaching(DEFAULT), postgres(url))
    assert problem.startswith("sink.url: ")
    assert "headgate allow add address" in problem
    assert wrong(reaching(DEFAULT), postgres(url), is_trusted=True) == []
    assert wrong(reaching(("address", "db.example.com:5432")), postgres(URL)) == []


@pytest.mark.parametrize("parameter", ["passfile", "sslkey", "sslcert", "sslrootcert", "sslcrl", "servicefile"])
def test_a_file_that_a_url_names_is_judged_as_a_path(parameter: str) -> None:
    found = reaching(DEFAULT, ("address", "db.example.com:5432"))
    (problem,) = wrong(found, postgres(f"{URL}?{parameter}=/etc/shadow"))
    assert "/etc/shadow is in no folder" in problem
    assert wrong(found, postgres(f"{URL}?{parameter}=here.pem")) == []


def test_what_a_secret_names_is_allowed_as_it_stands() -> None:
    document = postgres({"$secret": "db"})
    found = reaching()
    assert wrong(found, document, db="postgresql://u:p@127.0.0.1/x?sslkey=/etc/key") == []
    prepared, content = made(document, db="postgresql://u:p@127.0.0.1/x")
    guarded = found.guarded(prepared, content, is_trusted=False)
    assert guarded.sink_guard.bounds == ()


async def test_a_run_is_judged_as_the_one_who_published_it() -> None:
    prepared, content = made(postgres(URL.replace("db.example.com", "127.0.0.1")))
    bounded = reaching(DEFAULT).guarded(prepared, content, is_trusted=False)
    with pytest.raises(OutOfReach):
        await bounded.sink_guard.resolve("127.0.0.1", 5432)
    trusted = reaching(DEFAULT).guarded(prepared, content, is_trusted=True)
    assert await trusted.sink_guard.resolve("127.0.0.1", 5432) == ["127.0.0.1"]


def test_the_settings_of_a_node_narrow_everything(start: Path) -> None:
    found = reaching(DEFAULT, ("address", "*.example.com:5432"), files="data", addresses="10.0.0.0/8:*", modules="mine")
    for is_trusted in (False, True):
        (problem, _) = wrong(found, files("x.jsonl"), is_trusted=is_trusted)
        assert "HEADGATE_FILES" in problem
        assert wrong(found, files("data/x.jsonl"), is_trusted=is_trusted) == []
        (problem,) = wrong(found, postgres("postgresql://u@127.1/x"), is_trusted=True)
        assert "HEADGATE_ADDRESSES" in problem
    guard = found.guard(is_trusted=True)
    error = guard.problem(Place(Kind.MODULE, "os"))
    assert error is not None
    assert "HEADGATE_MODULES" in error.hint
    # A secret's address, too: the node's own machine decides where it connects.
    prepared, content = made(postgres({"$secret": "db"}), db="postgresql://u:p@127.0.0.1/x")
    kept = found.guarded(prepared, content, is_trusted=True).sink_guard
    with pytest.raises(OutOfReach, match="address that may be reached"):
        kept.connect("127.0.0.1", 5432, 1.0)


def test_a_relative_folder_counts_from_where_the_node_was_started(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = reaching(("folder", "data"))
    monkeypatch.chdir("/")
    assert found.guard(is_trusted=False).path(start / "data/x") == os.path.realpath(start / "data/x")


def test_a_node_that_was_started_in_the_root_reaches_nothing_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert wrong(reaching(DEFAULT), files("etc/passwd"))
    assert wrong(reaching(("folder", "/")), files("etc/passwd")) == []


def test_a_setting_that_is_no_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_ADDRESSES", "10.0.0.0/8")
    with pytest.raises(ConfigError, match="HEADGATE_ADDRESSES: is not"):
        load()


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (Kind.FOLDER, "/data/./orders/", "/data/orders"),
        (Kind.ADDRESS, " DB.example.com:5432", "db.example.com:5432"),
        (Kind.MODULE, "mine", "mine"),
    ],
)
def test_a_line_is_kept_in_one_form(kind: Kind, value: str, kept: str) -> None:
    assert checked(kind, value) == kept
    with pytest.raises(ConfigError, match="is not"):
        checked(kind, "\0")
