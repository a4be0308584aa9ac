"""A line as people write it: options before or after the command, names that a shell completes, a first document."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_node import FakeNode, Run, summary

from headgate.cli import is_noun, watching
from headgate.cli.completion import candidates, split
from headgate.cli.order import in_order
from tests.waiting import LONG_S

PROGRAM = [sys.executable, "-m", "headgate.cli"]


# Options anywhere.


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--url U ds list", "ds list --url U"),
        ("--url=U ds --json list x", "ds list --url=U --json x"),
        ("ds --token T show x --url U", "ds show --token T x --url U"),
        ("--json doctor", "doctor --json"),
        ("ds show x -- --url", "ds show x -- --url"),
        ("ds tap --where --url list", "ds tap --where --url list"),
        ("sql --json SELECT", "sql --json SELECT"),
        ("--url U --help", "--help"),
        ("--json ds --help", "ds --help"),
        ("--url U ds", "ds"),
        ("--url U", ""),
        ("--url", ""),
        ("nonsense --url U", "nonsense --url U"),
    ],
)
def test_shared_options_stand_before_or_after_the_command(given: str, meant: str) -> None:
    assert in_order(given.split(), is_noun) == meant.split()


def test_a_line_with_options_in_front_asks_that_node(node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_URL")
    node.on("GET", "/api/datasources", {"items": [summary("orders")], "notices": []})
    found = run("--json", "--url", node.url, "ds", "--token", "hg_x", "list")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["items"][0]["name"] == "orders"
    assert node.asked[-1].token == "hg_x"


def test_an_option_that_a_command_does_not_have_is_refused_wherever_it_stands(run: Run) -> None:
    for line in (("--url", "u", "schema"), ("schema", "--url", "u")):
        found = run(*line)
        assert (found.exit_code, found.stderr) == (2, "headgate: no such option: --url (headgate schema --help)\n")


# Watching, and logs of all.


def test_a_list_is_looked_at_again_also_after_its_node_was_away(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def sleep(every_s: float) -> None:
        nonlocal looks
        looks += 1
        assert every_s == watching.EVERY_S
        if looks in (1, 2):
            node.on("GET", "/api/datasources", {"detail": "the database is away"}, status=503)
        elif looks == 3:
            node.on("GET", "/api/datasources", {"items": [summary("later")], "notices": []})
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", sleep)
    node.on("GET", "/api/datasources", {"items": [summary("orders")], "notices": []})
    found = run("ds", "list", "--watch", "--json")
    assert [json.loads(line)["items"][0]["name"] for line in found.stdout.splitlines()] == ["orders", "later"]
    assert found.stderr == "headgate: the database is away; waiting for it\n"


def line(id: int, text: str) -> dict[str, Any]:
    at = "2026-01-01T00:00:00Z"
    return {"id": id, "name": "orders", "at": at, "level": "info", "text": text, "fields": {"n": id}}


def test_logs_of_all_are_asked_for_by_datasource_level_and_text(node: FakeNode, run: Run) -> None:
    node.on("GET", "/api/logs", {"items": [line(7, "seven")], "before": None})
    found = run("logs", "orders", "--level", "info", "--search", "SEV")
    assert found.stdout == "2026-01-01T00:00:00 info    orders               seven n=7\n"
    asked = {"datasource": "orders", "level": "info", "search": "SEV", "follow": "false", "limit": "50"}
    assert node.asked[-1].query == asked
    assert run("logs", "No Name").exit_code == 3


# Completion.


def names(kind: str) -> list[str]:
    return {"datasources": ["orders", "orders-eu"], "streams": ["orders:0"], "nodes": ["n1"]}[kind]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("headgate dl", ["dlq"]),
        ("headgate ds l", ["list", "logs"]),
        ("headgate --t", ["--token"]),
        ("headgate --url U ds lis", ["list"]),
        ("headgate ds show ord", ["orders", "orders-eu"]),
        ("headgate ds show orders ", []),
        ("headgate ds start orders orders-", ["orders-eu"]),
        ("headgate explain ", ["orders", "orders-eu"]),
        ("headgate ds tap orders --at d", ["dead"]),
        ("headgate ds tap --at dead o", ["orders", "orders-eu"]),
        ("headgate ds list --w", ["--watch"]),
        ("headgate streams show orders:", ["orders:0"]),
        ("headgate nodes drain ", ["n1"]),
        ("headgate secrets delete ", []),
        ("headgate completion z", ["zsh"]),
        ("headgate ds show 'ord", ["orders", "orders-eu"]),
        ("headgate nonsense x", []),
    ],
)
def test_what_may_stand_at_the_end_of_a_line(typed: str, found: list[str]) -> None:
    assert candidates(split(typed), names) == found


def test_names_come_from_the_node_and_none_that_a_shell_would_obey(node: FakeNode, run: Run) -> None:
    node.on(
        "GET", "/api/nodes", {"items": [{"name": "n1"}, {"name": "n2; rm -rf /"}, {"name": "$(x)"}, {"name": "n\n3"}]}
    )
    assert run("completion", "fish", "--line", "headgate nodes drain ").stdout == "n1\n"
    node.on("GET", "/api/streams", {"items": [{"name": "orders:0"}]})
    assert run("completion", "bash", "--line", "headgate streams show orders:").stdout == "0\n"
    assert run("completion", "zsh", "--line", "headgate streams show orders:").stdout == "orders:0\n"
    node.refuse(500, "broken")
    found = run("completion", "bash", "--line", "headgate ds show ")
    assert (found.exit_code, found.output) == (0, "")


def test_a_node_that_is_away_is_not_complained_about(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:1")
    found = run("completion", "bash", "--line", "headgate ds show ")
    assert (found.exit_code, found.output) == (0, "")


def test_bash_completes_by_the_script(tmp_path: Path, run: Run) -> None:
    """A real bash calls the real function; `headgate` is a function of it that starts this tree's."""
    script = tmp_path / "completion.bash"
    script.write_text(run("completion", "bash").stdout)
    line = "headgate ds li"
    text = f"""headgate() {{ {sys.executable} -m headgate.cli "$@"; }}; source {script}
        COMP_LINE='{line}'; COMP_POINT={len(line)}; _headgate
        printf '%s\\n' "${{COMPREPLY[@]}}"; complete -p headgate"""
    found = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=LONG_S)
    assert found.stdout == "list\ncomplete -o default -F _headgate headgate\n", found.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_their_script(shell: str, tmp_path: Path, run: Run) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(run("completion", shell).stdout)
    found = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=LONG_S)
    assert (found.returncode, found.stderr) == (0, "")


# A first document.

FLAGS = ("--name", "orders", "--source", "webhook", "--sink", "postgres")


def test_a_document_by_flags_names_a_secret_and_says_what_to_do_next(run: Run, tmp_path: Path) -> None:
    found = run("init", *FLAGS, "--set", "sink.table=orders", "--set", "sink.mode=upsert", "--set", "mapping.key=id")
    assert found.exit_code == 0, found.output
    assert "headgate secrets set orders-sink\n  headgate apply headgate.yaml\n" in found.stdout
    text = (tmp_path / "headgate.yaml").read_text()
    assert "$secret: orders-sink" in text
    again = run("init", *FLAGS, "--set", "sink.table=orders")
    assert (again.exit_code, again.stderr) == (
        4,
        "headgate: headgate.yaml exists (name another file, or say --force)\n",
    )
    assert (tmp_path / "headgate.yaml").read_text() == text
    assert run("init", *FLAGS, "--set", "sink.table=other", "--force").exit_code == 0
    assert "other" in (tmp_path / "headgate.yaml").read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--name", "orders"), "--source: is missing"),
        (("--name", "Or ders", "--source", "webhook", "--sink", "blackhole"), "is not a name"),
        (("--name", "o", "--source", "webhok", "--sink", "blackhole"), "did you mean webhook?"),
        (("--name", "o", "--source", "webhook", "--sink", "files"), "sink.path: is missing"),
        ((*FLAGS, "--set", "sink.table"), "is not PATH=VALUE"),
        ((*FLAGS, "--set", "source.type.x=1"), "leads into what is no mapping"),
        ((*FLAGS, "--set", "sink.url=postgresql://a:hunter2@h/d", "--set", "sink.table=t"), "sink.url"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    run: Run, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    found = run("init", *flags)
    assert found.exit_code == 3
    assert said in found.stderr
    assert "hunter2" not in found.output
    assert not (tmp_path / "headgate.yaml").exists()


def answered(words: list[str], answers: list[str]) -> str:
    """What a command says on a terminal where somebody gives these answers."""
    parent, child = pty.openpty()
    process = subprocess.Popen([*PROGRAM, *words], stdin=child, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    os.close(child)
    os.write(parent, "".join(f"{one}\n" for one in answers).encode())
    out, _ = process.communicate(timeout=LONG_S)
    os.close(parent)
    return out.decode()


def test_on_a_terminal_it_asks_for_what_is_needed(tmp_path: Path) -> None:
    said = answered(["init"], ["clicks", "nothing", "webhook", "postgres", "warehouse", "clicks"])
    assert "'nothing' is none of them" in said
    assert "headgate secrets set warehouse" in said, said
    text = (tmp_path / "headgate.yaml").read_text()
    assert "  clicks:\n" in text
    assert "$secret: warehouse" in text
    assert "table: clicks" in text


# What people read.


def test_a_pipe_gets_whole_lines(run: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    why = "long " * 100
    node.on("GET", "/api/connectors", {"items": [{"name": "x", "sides": ["sink"], "summary": why, "version": "1"}]})
    assert f"x          sink   {why}".rstrip() in run("connectors", "list").stdout
