"""Exit codes, error lines, and the ways a command can be cut short."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_node import INSTALLATION, FakeNode, Run, free_url, full, summary

from headgate.cli import ds
from headgate.cli.call import Call
from headgate.cli.dump import _look_for_nodes
from headgate.errors import Refused
from tests.waiting import LONG_S

COMMAND = [sys.executable, "-c", "from headgate.cli import main; main()"]


@pytest.mark.parametrize(
    ("status", "code"), [(400, 3), (401, 4), (403, 4), (404, 3), (409, 4), (422, 3), (500, 1), (503, 1)]
)
def test_a_status_is_an_exit_code_and_a_line(run: Run, node: FakeNode, status: int, code: int) -> None:
    node.refuse(status, "no", "do this")
    result = run("ds", "publish", "orders")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", "headgate: no (do this)\n")


DUMP = "01928f3e-7c11-7000-8000-000000000001"


def test_a_node_that_does_not_know_us_says_little_so_we_say_what_to_do(run: Run, node: FakeNode) -> None:
    node.on("GET", "/api/datasources", {"title": "Unauthorized", "status": 401}, 401)
    result = run("ds", "list")
    expected = "headgate: the token is missing or wrong (give a token with --token or HEADGATE_TOKEN)\n"
    assert (result.exit_code, result.stderr) == (4, expected)


def test_five_problems_are_five_lines(run: Run, node: FakeNode) -> None:
    problems = [{"path": f"sink.{i}", "message": "is missing", "hint": "required" if i else ""} for i in range(5)]
    node.refuse(422, "5 problems", problems=problems)
    result = run("ds", "publish", "orders", "--json")
    assert (result.exit_code, result.stdout) == (3, "")
    lines = result.stderr.splitlines()
    assert lines[:3] == ["headgate: 5 problems", "  sink.0: is missing", "  sink.1: is missing (required)"]
    assert len(lines) == 6


def test_one_problem_is_one_line(run: Run, node: FakeNode) -> None:
    node.refuse(422, problems=[{"path": "sink.url", "message": "secret 'x' does not exist", "hint": "set it"}])
    assert run("ds", "publish", "orders").stderr == "headgate: sink.url: secret 'x' does not exist (set it)\n"


def test_a_node_that_is_away_is_named_with_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    url = free_url()
    result = run("ds", "list", "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"headgate: no node answers at {url}: ")
    assert "`headgate up`" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("url", ["nonsense", "http://[", "ftp://127.0.0.1", "http://127.0.0.1:99999"])
def test_a_url_that_is_none_is_one_line(run: Run, url: str) -> None:
    result = run("ds", "list", "--url", url)
    assert result.exit_code in (1, 3)
    assert len(result.stderr.splitlines()) == 1
    assert "a bug" not in result.stderr


def test_a_server_that_is_no_node_is_said_to_be_none(run: Run, node: FakeNode) -> None:
    node.on("GET", "/api/datasources", "<html>")
    assert "is not a Headgate node" in run("ds", "list").stderr


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "ds nonsense",
        "ds show",
        "ds list --nonsense",
        "--nonsense",
        "ds rollback orders many",
        "ds validate",
        "tokens create ci --role king",
        "ds events orders --limit 0",
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(run: Run, line: str) -> None:
    result = run(*line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("headgate: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["..", "a/b", "", "UPPER", "a?b", "x" * 101])
def test_what_cannot_be_a_name_never_reaches_the_node(run: Run, node: FakeNode, name: str) -> None:
    assert run("ds", "show", name).exit_code == 3
    assert run("secrets", "delete", name).exit_code == 3
    assert not node.asked


def test_a_file_that_is_absent_or_broken_is_one_line(run: Run, tmp_path: Path) -> None:
    assert run("plan", "absent.yaml").stderr == "headgate: file absent.yaml does not exist\n"
    (tmp_path / "bad.yaml").write_text("source: {type: x}\nsource: {}\n")
    result = run("ds", "create", "orders", "--file", "bad.yaml")
    assert (result.exit_code, result.stderr) == (3, "headgate: bad.yaml:2:1: the key 'source' appears twice\n")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    assert run("plan", "bytes.yaml").exit_code == 3
    assert run("plan", str(tmp_path)).exit_code == 1


SINK = "sink: {type: blackhole}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"source: {{on: 1, type: generator}}\n{SINK}",
            "stdin:1:1: source.True: a key must be text (quote it; no zero bytes)",
        ),
        (f"source: {{rate: .nan, type: generator}}\n{SINK}", "stdin:1:10: source.rate: must be a finite number"),
        ("source: {rate: !!int abc}\nsink: {}", "a value does not fit its tag"),
        ("source: {type: generator}", "sink: is missing"),
        ("- 1", "must be a mapping"),
        ("&a {source: *a, sink: {}}", "aliases stand for too many values"),
    ],
)
def test_what_json_has_no_word_for_is_found_before_it_is_sent(
    run: Run, node: FakeNode, text: str, problem: str
) -> None:
    result = run("ds", "validate", "orders", "--file", "-", input=text)
    assert (result.exit_code, node.asked) == (3, [])
    assert problem in result.stderr
    result = run("ds", "validate", "orders", "--file", "-", "--json", input=text)
    assert (result.exit_code, len(json.loads(result.stdout)["problems"])) == (3, 1)


def test_a_document_that_cannot_be_sent_is_checked_as_far_as_that_goes(run: Run, node: FakeNode) -> None:
    text = "source: {rate: .nan, type: generator, rte: 1}\nmapping:\n  set:\n    a: lowr(b)\n  python: shop:clean\n"
    result = run("ds", "validate", "orders", "--file", "-", input=text)
    assert (result.exit_code, node.asked) == (3, [])
    lines = [line.strip().partition(": ")[0] for line in result.stderr.splitlines()[1:]]
    assert lines == ["stdin:1:1", "stdin:1:10", "stdin:1:39", "stdin:4:5"]


def test_what_a_node_finds_in_a_document_is_shown_with_its_line(run: Run, node: FakeNode, tmp_path: Path) -> None:
    problems = [{"path": "sink.tabel", "message": "unknown option", "hint": "did you mean table?"}]
    node.on("POST", "/api/datasources/orders/validate", {"problems": problems})
    (tmp_path / "all.yaml").write_text(
        "datasources:\n  orders:\n    source: {type: generator}\n    sink:\n      type: postgres\n      tabel: x\n"
    )
    result = run("ds", "validate", "orders", "--file", "all.yaml")
    assert result.stderr == "headgate: all.yaml:6:7: sink.tabel: unknown option (did you mean table?)\n"


def test_deleting_without_a_terminal_needs_a_yes(run: Run, node: FakeNode) -> None:
    node.on(
        "GET", "/api/datasources/orders/deletion", {"name": "orders", "payloads": 12, "letters": 1, "dumps": [DUMP]}
    )
    result = run("ds", "delete", "orders")
    assert (result.exit_code, result.stdout) == (4, "")
    lost = "These are lost: 12 accepted payloads wait, 1 dead letter is open, dump 01928f3e-7c11 is not over."
    assert lost in result.stderr
    assert "--yes" in result.stderr
    assert [one.method for one in node.asked] == ["GET"]


def test_a_bug_is_a_line_with_its_place(run: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.on("GET", "/api/datasources", {"items": [summary()]})
    monkeypatch.delattr(ds, "_version")
    result = run("ds", "list")
    assert result.exit_code == 1
    assert result.stderr.startswith("headgate: NameError: name '_version' is not defined (a bug, at cli/ds.py:")


@pytest.mark.parametrize(
    "answer", [{"unexpected": []}, [], {"items": [{"name": "orders"}]}, {"items": [summary(enabled="no")]}]
)
def test_an_answer_of_another_shape_is_no_bug_but_another_release(run: Run, node: FakeNode, answer: Any) -> None:
    node.on("GET", "/api/datasources", json.dumps(answer))
    result = run("ds", "list")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"headgate: {node.url} does not answer as a Headgate node of this release: ")


def test_a_machine_gets_fields_that_this_release_does_not_know(run: Run, node: FakeNode) -> None:
    sent = {"items": [summary(colour="blue")], "next": None}
    node.on("GET", "/api/datasources", sent)
    assert json.loads(run("ds", "list", "--json").stdout) == sent


def test_the_nouns_without_a_command_show_their_help(run: Run) -> None:
    for line in ([], ["ds"], ["secrets"]):
        result = run(*line)
        assert result.exit_code == 2
        assert "Commands:" in result.stdout


# Where the node is, and who asks.


def test_the_node_and_the_token_of_this_home_are_found(
    run: Run, node: FakeNode, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_URL")
    (home / "node.json").write_text(json.dumps({"url": node.url}))
    (home / "token").write_text("hg_file\n")
    (home / "installation").write_text(INSTALLATION)
    node.on("GET", "/api/nodes", {"items": []})
    assert run("nodes", "list").exit_code == 0
    monkeypatch.setenv("HEADGATE_TOKEN", "hg_env")
    run("nodes", "list")
    run("nodes", "list", "--token", "hg_flag")
    assert [asked.token for asked in node.asked] == ["hg_file", "hg_env", "hg_flag"]


def test_a_home_named_in_the_settings_file_is_found(
    run: Run, node: FakeNode, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_HOME")
    (tmp_path / "headgate.toml").write_text('home = "home"\n')
    (home / "token").write_text("hg_file")
    (home / "installation").write_text(INSTALLATION)
    run("nodes", "list")
    assert node.asked[0].token == "hg_file"


def test_a_misspelled_setting_is_an_error_of_every_command_before_a_node_is_asked(
    run: Run, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("headgate_tokn", "hg_x")
    (tmp_path / "headgate.toml").write_text('hom = "home"\n')
    result = run("nodes", "list")
    assert result.exit_code == 3
    assert "headgate_tokn: is not a setting (did you mean HEADGATE_TOKEN?)" in result.stderr
    assert "headgate.toml: 'hom' is not a setting (did you mean home?)" in result.stderr
    assert node.asked == []


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    run: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", free_url())
    node.on("GET", "/api/nodes", {"items": []})
    assert run("nodes", "list").exit_code == 0


# Processes.


def start(node: FakeNode, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "HEADGATE_URL": node.url}
    pipe = subprocess.PIPE
    return subprocess.Popen([*COMMAND, *arguments], env=env, stdout=pipe, stderr=pipe, text=True, **options)


def test_a_reader_that_goes_away_is_no_error(node: FakeNode) -> None:
    node.on("GET", "/api/datasources", {"items": [summary(f"orders-{i}") for i in range(5000)]})
    process = start(node, "ds", "list", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(LONG_S) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_ctrl_c_is_quiet(node: FakeNode) -> None:
    event = {"id": 1, "name": "orders", "type": "started", "payload": {}, "actor": "ada", "at": "2026-01-01T00:00:00Z"}
    node.on("GET", "/api/datasources/orders/events", {"items": [event]})
    node.on("GET", "/api/datasources/orders/events/stream", [])
    process = start(node, "ds", "events", "orders", "--follow")
    assert process.stdout is not None
    assert "started" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONG_S)
    assert (process.returncode, out, err) == (130, "", "")


def test_on_a_terminal_deleting_asks(node: FakeNode) -> None:
    node.on("GET", "/api/datasources/orders/deletion", {"name": "orders", "payloads": 0, "letters": 0, "dumps": []})
    node.on("DELETE", "/api/datasources/orders", None, 204)
    for answer, code, asked in (("n\n", 4, 1), ("y\n", 0, 3)):
        ours, theirs = pty.openpty()
        process = start(node, "ds", "delete", "orders", stdin=theirs)
        os.write(ours, answer.encode())
        out, err = process.communicate(timeout=LONG_S)
        assert (process.returncode, len(node.asked)) == (code, asked), out + err
        assert "Delete datasource 'orders'" in err
        os.close(ours)
        os.close(theirs)


def test_a_terminal_without_unicode_gets_an_answer_too(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.on("GET", "/api/datasources/orders", full())
    node.on("GET", "/api/datasources", {"items": [summary()]})
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    out, err = start(node, "ds", "list").communicate(timeout=LONG_S)
    assert ("webhook ? postgres" in out, err) == (True, "")


def test_the_command_line_starts_without_what_only_a_node_needs() -> None:
    heavy = "{'asyncpg', 'litestar', 'pydantic', 'httpx', 'uvicorn', 'yaml', 'structlog'}"
    code = f"import sys; from headgate.cli import app; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_asking_a_node_loads_nothing_of_the_store(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys; from headgate.cli.call import Call; from headgate.cli import ds; "
        f"ds.list_(Call({node.url!r})); print(sorted({{'asyncpg', 'litestar', 'pydantic'}} & set(sys.modules)))"
    )
    node.on("GET", "/api/datasources", {"items": []})
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.endswith("[]\n"), result.stderr
    ds.list_(Call(node.url))
    assert "no datasources yet" in capsys.readouterr().out


async def test_nodes_are_given_no_dump_whose_urls_they_could_not_decrypt() -> None:
    """The code is not that of a table without a key, which is `no_key`."""
    with pytest.raises(Refused, match="without a master key") as refused:
        await _look_for_nodes(SimpleNamespace(keyring=None))  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.hint) == ("no_master_key", "set HEADGATE_MASTER_KEY")
