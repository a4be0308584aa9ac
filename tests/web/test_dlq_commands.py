"""`headgate dlq` against a real node: from a stuck record to its row, as a person would do it."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headgate.cli import app
from headgate.cli import letters as commands
from tests.proxy import proxied
from tests.web_node import Web

Run = Callable[..., Result]


@pytest.fixture
def run(web: Web, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command against the node of this module."""
    monkeypatch.setenv("HEADGATE_URL", web.node.url)
    monkeypatch.setenv("HEADGATE_TOKEN", web.node.token)
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(commands, "LOOK_S", 0.02)

    def invoke(*arguments: str, code: int = 0, input: str | None = None) -> Result:
        result = CliRunner().invoke(app, ["dlq", *arguments], input=input)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return invoke


def stuck(web: Web, name: str, out: Path, *payloads: Any, **parts: Any) -> None:
    """A webhook into a file, with letters of these payloads: an id must be a number, and so must a total."""
    document = {
        "source": {"type": "webhook"},
        "mapping": {"set": {"id": "int(id)", "total": "int(total)"}},
        "sink": {"type": "files", "path": str(out)},
        **parts,
    }
    web.publish(name, **document)
    for one in payloads:
        assert web.ask("POST", f"/hooks/{name}", json=one).status_code == 202
    path = f"/api/datasources/{name}/dead-letters"
    web.until(lambda: web.call("GET", path)["open"], lambda found: found == len(payloads))


def written(out: Path) -> list[Any]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def ids(web: Web, name: str) -> list[str]:
    return [one["id"] for one in web.call("GET", "/api/dead-letters", params={"datasource": name})["items"]]


def test_letters_are_listed_with_place_field_and_reason_and_no_value(
    web: Web, name: str, run: Run, tmp_path: Path
) -> None:
    stuck(web, name, tmp_path / "out", {"id": "pearl", "total": 1}, {"id": 1, "total": "pearl"})
    text = run("list", name).output
    assert "pearl" not in text
    assert text.splitlines()[0].split() == [
        "LETTER",
        "LAST",
        "TRY",
        "STREAM",
        "OUTCOME",
        "STAGE",
        "PLACE",
        "FIELD",
        "REASON",
    ]
    assert f"{name}:0" in text
    assert "set.total" in text
    assert "cannot read text as an int" in text
    assert [one["field"] for one in json.loads(run("list", name, "--field", "set.id", "--json").output)["items"]] == [
        "set.id"
    ]
    assert run("list", name, "--reason", "constraint").output.strip() == f"no open letters of {name}"
    assert run("list", name, "--outcome", "all", "--until", "2h").output.strip() == f"no letters of {name}"
    assert len(json.loads(run("list", name, "--since", "2h", "--json").output)["items"]) == 2
    assert "… and more" in run("list", name, "--limit", "1").output


def test_one_letter_is_shown_with_its_record(web: Web, name: str, run: Run, tmp_path: Path) -> None:
    stuck(web, name, tmp_path / "out", {"id": "pearl\x1b[31m", "total": 1})
    (id,) = ids(web, name)
    text = run("show", id[:8]).output
    assert "set.id" in text
    assert "pearl\\u001b[31m" in text  # Shown, not obeyed.
    assert json.loads(run("show", id, "--json").output)["payload"] == {"id": "pearl\x1b[31m", "total": 1}


def test_a_letter_is_edited_in_an_editor_and_replayed(
    web: Web, name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, editor = tmp_path / "out", tmp_path / "editor"
    stuck(web, name, out, {"id": "one", "total": 7})
    editor.write_text('#!/bin/sh\nsed -i \'s/"one"/1/\' "$1"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    (id,) = ids(web, name)
    text = run("edit", id[:8], "--replay").output
    assert text.strip() == f"1 letter of {name}: 1 replayed"
    assert written(out) == [{"id": 1, "total": 7}]
    assert "is gone" in run("edit", id[:8], code=4).output


def test_an_edit_that_changes_nothing_or_is_no_json_leaves_the_letter(
    web: Web, name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck(web, name, tmp_path / "out", {"id": "one", "total": 7})
    (id,) = ids(web, name)
    monkeypatch.setenv("EDITOR", "true")
    assert run("edit", id).output.strip() == "nothing changed"
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "{oops" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    result = run("edit", id, code=3)
    assert "is not JSON" in result.output
    kept = result.output.partition("your text is in ")[2].split()[0]
    assert Path(kept).read_text() == "{oops\n"
    assert (
        "was edited (headgate dlq replay --id" in run("edit", id, "--file", "-", input='{"id": 1, "total": 2}').output
    )
    assert json.loads(run("show", id, "--json").output)["payload"] == {"id": 1, "total": 2}


def test_a_replay_says_what_was_replayed_and_what_failed_again(web: Web, name: str, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stuck(web, name, out, *({"id": n, "total": "x"} for n in range(3)), {"id": "y", "total": 1})
    web.publish(
        name,
        source={"type": "webhook"},
        mapping={"set": {"id": "int(id)", "total": "0"}},
        sink={"type": "files", "path": str(out)},
    )
    text = run("replay", name).output
    assert text.strip() == f"4 letters of {name}: 3 replayed, 1 failed again (headgate dlq list {name})"
    assert sorted(one["id"] for one in written(out)) == [0, 1, 2]
    done = json.loads(run("replay", name, "--field", "set.total", "--json").output)
    assert done["letters"] == 0
    assert run("replay", name, "--field", "set.total").output.strip() == f"no letters of {name} to replay"
    done = json.loads(run("replay", name, "--json").output)
    assert (done["letters"], done["after"]["open"], done["after"]["waiting"]) == (1, 1, 0)


def test_a_dry_run_says_what_would_happen_and_nothing_does(web: Web, name: str, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stuck(web, name, out, {"id": 1, "total": "x"}, {"id": "y", "total": 1})
    web.publish(
        name,
        source={"type": "webhook"},
        mapping={"set": {"id": "int(id)", "total": "0"}},
        sink={"type": "files", "path": str(out)},
    )
    text = run("replay", name, "--dry-run").output
    assert "version 2 of" in text
    assert "1 would be written, 0 filtered, 1 fail again" in text
    assert "the sink was not asked" in text
    found = web.call("GET", f"/api/datasources/{name}/dead-letters")
    assert (found["open"], found["waiting"]) == (2, 0)
    found = json.loads(run("replay", name, "--dry-run", "--with-version", "1", "--json").output)["dry_run"]
    assert (found["version"], found["dead_lettered"]) == (1, 2)
    assert written(out) == []


async def test_a_dry_run_asks_a_sink_that_can_take_it_back(web: Web, name: str, run: Run) -> None:
    """A test runs as nobody, who cannot open the socket of an embedded server, so it goes by TCP."""
    async with proxied(web.database) as (_, url):
        await asyncio.to_thread(_tried_and_taken_back, web, name, run, url)


def _tried_and_taken_back(web: Web, name: str, run: Run, url: str) -> None:
    table = name.replace("-", "_")
    web.call("PUT", f"/api/secrets/{name}", {"value": url})
    web.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, total bigint CHECK (total < 10))")
    sink = {"type": "postgres", "url": {"$secret": name}, "table": table, "mode": "upsert"}
    mapping = {"key": ["id"], "set": {"id": "int(id)", "total": "int(total)"}}
    stuck(web, name, Path("unused"), {"id": 1, "total": 50}, {"id": 2, "total": 60}, mapping=mapping, sink=sink)
    found = json.loads(run("list", name, "--json").output)["items"]
    assert {one["stage"] for one in found} == {"sink"}
    run("edit", found[0]["id"], "--file", "-", input=json.dumps({"id": 2, "total": 6}))
    tried = json.loads(run("replay", name, "--dry-run", "--json").output)["dry_run"]
    assert (tried["is_rehearsed"], tried["written"], tried["dead_lettered"]) == (True, 1, 1)
    assert web.rows(f"SELECT * FROM {table}") == []
    text = run("replay", name).output
    assert "1 replayed, 1 failed again" in text
    assert [tuple(row) for row in web.rows(f"SELECT * FROM {table}")] == [(2, 6)]


def test_a_replay_that_cannot_be_now_is_not_waited_for(web: Web, name: str, run: Run, tmp_path: Path) -> None:
    stuck(web, name, tmp_path / "out", {"id": "x", "total": 1})
    web.call("POST", f"/api/datasources/{name}/stop")
    text = run("replay", name).output
    assert text.strip() == f"1 letter to replay, but not now: {name} is stopped: they are replayed when it is started"


def test_letters_are_discarded_by_name_filter_or_id_and_only_if_that_is_meant(
    web: Web, name: str, run: Run, tmp_path: Path
) -> None:
    stuck(web, name, tmp_path / "out", {"id": "x", "total": 1}, {"id": 1, "total": "x"}, {"id": "z", "total": 1})
    assert "say which" in run("discard", name, "--yes", code=2).output
    assert "Nobody is here to answer" in run("discard", name, "--all", code=4).output
    (id,) = json.loads(run("list", name, "--field", "set.total", "--json").output)["items"]
    assert run("discard", "--id", id["id"][:8], "--yes").output.strip() == f"1 letter of {name} discarded"
    assert run("discard", name, "--all", "--yes").output.strip() == f"2 letters of {name} discarded"
    assert run("list", name).output.strip() == f"no open letters of {name}"


def test_letters_are_exported_with_their_records(web: Web, name: str, run: Run, tmp_path: Path) -> None:
    stuck(web, name, tmp_path / "out", {"id": "x", "total": 1}, {"id": "y", "total": 2})
    (one,) = [json.loads(line) for line in run("export", name, "--field", "set.id").output.splitlines()[:1]]
    assert one["payload"] == {"id": "y", "total": 2}
    file = tmp_path / "letters.jsonl"
    assert str(file) in run("export", name, "--out", str(file)).output
    assert [json.loads(line)["payload"]["id"] for line in file.read_text().splitlines()] == ["y", "x"]
    assert "cannot be written" in run("export", name, "--out", str(tmp_path / "none" / "x"), code=1).output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("show", "zzzzzzzz"), 3, "does not exist"),
        (("show", "../tokens"), 3, "does not exist"),
        (("show", "00000000"), 3, "does not exist"),
        (("list", "nobody"), 3, "does not exist"),
        (("list", "No Body"), 3, "no datasource"),
        (("list", "--since", "yesterday"), 2, "must be a time such as"),
        (("list", "--stage", "moon"), 2, "moon"),
        (("replay",), 2, "give a NAME"),
        (("replay", "nobody"), 3, "does not exist"),
        (("discard", "nobody", "--stage", "sink", "--yes"), 3, "does not exist"),
        (("export", "nobody"), 3, "does not exist"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(run: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    result = run(*arguments, code=code)
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1
