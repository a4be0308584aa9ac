"""`headgate streams` and `headgate nodes` against real nodes; and against a fake one where somebody has to wait."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from fake_node import FakeNode, Run, minutes_ago
from typer.testing import CliRunner, Result

from headgate.cli import app
from headgate.cli import nodes as nodes_module
from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S
from tests.web_node import BLACKHOLE, GENERATOR, Databases, Web, bearer, numbers, started

COMMAND = [sys.executable, "-c", "from headgate.cli import main; main()"]

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def web(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """A real node that is called alpha."""
    databases = Databases(server)
    with started(tmp_path_factory.mktemp("alpha"), databases.make(), HEADGATE_NODE_NAME="alpha") as node:
        yield node
    databases.drop()


@pytest.fixture
def beta(web: Web, tmp_path: Path) -> Iterator[Web]:
    """Another one, which lives for one test."""
    variables = {"HEADGATE_NODE_NAME": "beta", "HEADGATE_LEASE_S": "60"}
    node = NodeProcess.start(tmp_path / "beta", database=web.database, token=web.node.token, environment=variables)
    with httpx.Client(base_url=node.url, headers=bearer(node.token), timeout=LONG_S) as client:
        yield Web(node, web.database, client)
    node.end()
    for left in web.call("GET", "/api/nodes")["items"]:
        if not left["is_this"]:
            web.call("DELETE", f"/api/nodes/{left['id']}?yes=true")


@pytest.fixture
def name() -> str:
    return f"cli-{next(numbers)}"


@pytest.fixture
def cli(web: Web) -> Cli:
    """Run a command against alpha."""

    def invoke(*arguments: str, token: str | None = None) -> Result:
        where = ("--url", web.node.url, "--token", token or web.node.token)
        result = CliRunner().invoke(app, [*arguments[:2], *where, *arguments[2:]])
        assert "Traceback" not in result.output
        assert "a bug" not in result.output
        return result

    return invoke


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    return result.stdout


def data(result: Result) -> Any:
    """What a machine gets, and nothing else."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def stream(web: Web, name: str) -> dict[str, Any]:
    found: dict[str, Any] = web.call("GET", f"/api/streams/{name}")
    return found


def stopped(web: Web, name: str) -> str:
    """A datasource that has moved something, and was stopped. Returns the name of its stream."""
    web.publish(name)
    web.wait_for(name, lambda d: d["metrics"].get("records_written", 0) > 10)
    web.call("POST", f"/api/datasources/{name}/stop")
    web.until(lambda: stream(web, f"{name}:0"), lambda found: found["owner"] is None)
    return f"{name}:0"


# Streams.


def test_streams_are_listed_with_their_node(web: Web, cli: Cli, name: str) -> None:
    web.publish(name)
    web.running(name)
    (line,) = [line for line in ok(cli("streams", "list")).splitlines() if line.startswith(f"{name}:0 ")]
    assert line.split()[1:3] == ["alpha", stream(web, f"{name}:0")["owner"][:8]]
    assert name in [one["datasource"] for one in data(cli("streams", "list", "--json"))["items"]]


def test_a_stream_is_shown_by_name_and_by_id(web: Web, cli: Cli, name: str) -> None:
    web.publish(name)
    web.running(name)
    text = ok(cli("streams", "show", f"{name}:0"))
    assert "RUNNING, running" in text
    assert "alpha" in text
    id = stream(web, f"{name}:0")["id"]
    assert data(cli("streams", "show", id, "--json"))["name"] == f"{name}:0"


def test_a_stream_that_failed_says_so(web: Web, cli: Cli, name: str, tmp_path: Path) -> None:
    web.publish(name, sink={"type": "files", "path": str(tmp_path / "no" / "folder")})
    web.until(lambda: stream(web, f"{name}:0"), lambda found: found["unable"] and found["state"]["error"])
    text = cli("streams", "show", f"{name}:0").stdout
    assert "ERROR, quarantined" in text
    assert "config: folder" in text
    assert "unable      alpha: folder" in text
    assert "node        none" in text


def test_a_stream_that_a_program_pushes_is_called_by_its_label(web: Web, cli: Cli, name: str) -> None:
    web.publish(name, enabled=False)
    web.execute(
        "INSERT INTO headgate.stream (id, datasource, label)"
        f" SELECT '{uuid4()}', id, 'host-7' FROM headgate.datasource WHERE name = '{name}'"
    )
    assert f"{name}:host-7" in ok(cli("streams", "list"))
    assert "INIT, not started" in ok(cli("streams", "show", f"{name}:host-7"))
    assert ok(cli("streams", "set-position", f"{name}:host-7", "12", "--yes")) == f"{name}:host-7: null → 12\n"


def test_a_stream_whose_source_has_ended_rests(web: Web, cli: Cli, name: str) -> None:
    web.publish(name, source={"type": "generator", "count": 3})
    web.until(lambda: stream(web, f"{name}:0"), lambda found: found["rests"])
    assert "its source has ended" in ok(cli("streams", "show", f"{name}:0"))


def test_history_shows_who_had_it_and_what_was_edited(web: Web, cli: Cli, name: str) -> None:
    named = stopped(web, name)
    before = stream(web, named)["position"]
    cli("streams", "set-position", named, "3", "--yes")
    lines = ok(cli("streams", "history", named)).splitlines()
    assert lines[1].endswith(f"{before} → 3")
    kinds = ("edited", "released", "acquired", "granted")
    assert all(kind in line for kind, line in zip(kinds, lines[1:], strict=True))
    assert len(ok(cli("streams", "history", named, "--limit", "1")).splitlines()) == 2
    assert tuple(one["kind"] for one in data(cli("streams", "history", named, "--json"))["items"]) == kinds
    assert cli("streams", "history", named, "--limit", "0").exit_code == 2


def test_a_stream_that_never_ran_has_no_history(web: Web, cli: Cli, name: str) -> None:
    web.publish(name, enabled=False)
    assert ok(cli("streams", "history", f"{name}:0")) == "it has never run\n"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("5", 5),
        ('"5"', "5"),
        ('"0/16B3748"', "0/16B3748"),
        ("null", None),
        ('{"file": "a.jsonl", "offset": 7}', {"file": "a.jsonl", "offset": 7}),
        ('""', ""),
        ("123456789012345678901234567890", 123456789012345678901234567890),
    ],
)
def test_a_position_is_any_json(web: Web, cli: Cli, text: str, position: Any) -> None:
    if not web.ask("GET", "/api/datasources/cli-positions").is_success:
        web.publish("cli-positions", enabled=False)
    found = data(cli("streams", "set-position", "cli-positions:0", text, "--yes", "--json"))
    assert found["position"] == position
    assert stream(web, "cli-positions:0")["position"] == position


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("abc", "at character 1: expecting value"),
        ("0/16B3748", "at character 2: extra data"),
        ('{"file": "a.jsonl" "offset": 7}', "at character 20: expecting ',' delimiter"),
        ("[1, 2", "at character 6: expecting ',' delimiter"),
        ("", "at character 1: expecting value"),
        ("NaN", "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ('{"a": 1, "a": 2}', "an object has a name twice"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_what_is_no_json_is_refused_in_one_line_with_its_place(run: Run, node: FakeNode, text: str, why: str) -> None:
    result = run("streams", "set-position", "orders:0", "--yes", "--", text)
    assert (result.exit_code, result.stdout, node.asked) == (2, "", [])
    (line,) = result.stderr.splitlines()
    assert f"POSITION is not JSON {why}" in line.replace("JSON: ", "JSON ")
    assert "a text needs quotes" in line


def test_a_position_is_edited_undone_and_done_again(web: Web, cli: Cli, name: str) -> None:
    named = stopped(web, name)
    before = stream(web, named)["position"]
    assert ok(cli("streams", "set-position", named, "3", "--yes")) == f"{named}: {before} → 3\n"
    assert ok(cli("streams", "set-position", named, "--undo", "--yes")) == f"{named}: 3 → {before}\n"
    found = data(cli("streams", "set-position", named, "--undo", "--yes", "--json"))
    assert (found["before"], found["position"], found["generation"]) == (before, 3, 3)
    assert ok(cli("streams", "set-position", named, "--yes", "--", "-1")) == f"{named}: 3 → -1\n"


def test_a_stream_that_runs_is_not_edited(web: Web, cli: Cli, name: str) -> None:
    web.publish(name)
    web.running(name)
    result = cli("streams", "set-position", f"{name}:0", "3")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == f"headgate: {name}:0 is running on alpha (headgate ds pause {name} first)\n"


def test_what_was_never_edited_cannot_be_undone(web: Web, cli: Cli, name: str) -> None:
    web.publish(name, enabled=False)
    result = cli("streams", "set-position", f"{name}:0", "--undo")
    assert (result.exit_code, result.stderr) == (4, f"headgate: the position of {name}:0 was never edited\n")


@pytest.mark.parametrize(
    "arguments", [(), ("3", "--undo"), ("3", "--from-history", "1"), ("--from-history", "1", "--undo")]
)
def test_a_position_or_a_line_or_an_undo_and_one_of_them(run: Run, node: FakeNode, arguments: tuple[str, ...]) -> None:
    result = run("streams", "set-position", "orders:0", *arguments)
    assert (result.exit_code, node.asked) == (2, [])
    assert "give a POSITION, --from-history or --undo, and one of them only" in result.stderr


LOOKING = [
    ("show",),
    ("history",),
    ("set-position", "1"),
    ("set-position", "--undo"),
    ("set-position", "--from-history", "1"),
]


@pytest.mark.parametrize("rest", LOOKING)
@pytest.mark.parametrize("stream", ["nobody:0", f"nobody:{'x' * 200}", str(UUID(int=7))])
def test_an_unknown_stream_is_exit_code_3(cli: Cli, rest: tuple[str, ...], stream: str) -> None:
    result = cli("streams", rest[0], stream, *rest[1:])
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == f"headgate: stream {stream!r} does not exist (headgate streams list)\n"


@pytest.mark.parametrize("rest", LOOKING)
@pytest.mark.parametrize(
    "stream", ["", "..", "orders", "orders:", ":0", "a/b:0", "orders:a/b", "orders:a b", "UPPER:0"]
)
def test_what_cannot_be_a_stream_never_reaches_the_node(
    run: Run, node: FakeNode, rest: tuple[str, ...], stream: str
) -> None:
    assert run("streams", rest[0], stream, *rest[1:]).exit_code == 3
    assert not node.asked


def test_a_name_that_two_streams_have_is_refused(web: Web, cli: Cli, name: str) -> None:
    web.publish(name, enabled=False)
    web.execute(
        "INSERT INTO headgate.stream (id, datasource, label)"
        f" SELECT '{uuid4()}', id, '0' FROM headgate.datasource WHERE name = '{name}'"
    )
    result = cli("streams", "show", f"{name}:0")
    assert result.exit_code == 4
    assert "name one by its id" in result.stderr


def test_a_viewer_may_look_and_not_act(web: Web, cli: Cli, name: str) -> None:
    web.publish(name, enabled=False)
    viewer = web.token("viewer")
    for looking in (("streams", "list"), ("streams", "show", f"{name}:0"), ("nodes", "list")):
        assert cli(*looking, token=viewer).exit_code == 0
    for acting in (
        ("streams", "set-position", f"{name}:0", "1"),
        ("nodes", "drain", "alpha"),
        ("nodes", "undrain", "alpha"),
        ("nodes", "forget", "alpha", "--yes"),
    ):
        result = cli(*acting, token=viewer)
        assert (result.exit_code, result.stdout) == (4, "")
        assert "this needs operator" in result.stderr
        assert cli(*acting, token="hg_wrong").exit_code == 4


# Nodes.


def test_nodes_are_listed_with_their_status(web: Web, beta: Web, cli: Cli) -> None:
    beta.node.process.send_signal(signal.SIGSTOP)
    try:
        web.until(lambda: cli("nodes", "list").stdout, lambda text: bool(re.search(r"silent ([3-9]|\d\d) s", text)))
    finally:
        beta.node.process.send_signal(signal.SIGCONT)
    web.until(lambda: cli("nodes", "list").stdout, lambda text: "silent" not in text)
    assert ok(cli("nodes", "list")).count(" up ") == 2
    ok(cli("nodes", "drain", "beta"))
    (line,) = [line for line in ok(cli("nodes", "list")).splitlines() if line.startswith("beta")]
    assert " draining " in line
    found = {one["name"]: one for one in data(cli("nodes", "list", "--json"))["items"]}
    assert (found["alpha"]["is_this"], found["beta"]["is_this"]) == (True, False)
    assert (found["alpha"]["status"], found["beta"]["draining"]) == ("up", True)


def test_a_node_is_drained_and_undrained(web: Web, beta: Web, cli: Cli, name: str) -> None:
    web.publish(name)
    web.running(name)
    try:
        text = ok(cli("nodes", "drain", "alpha"))
        assert text.startswith("drained alpha: ")
        assert "given back" in text
        web.until(lambda: stream(web, f"{name}:0")["node"], lambda node: node == "beta")
        done = data(cli("nodes", "drain", "beta", "--json"))
        assert (done["name"], done["streams"], done["draining"], done["others"]) == ("beta", 0, True, 0)
    finally:
        assert ok(cli("nodes", "undrain", "alpha")) == "alpha takes streams again\n"
    web.until(lambda: stream(web, f"{name}:0")["node"], lambda node: node == "alpha")
    assert data(cli("nodes", "undrain", "alpha", "--json"))["draining"] is False


def test_draining_the_only_node_says_that_nobody_takes_the_streams(web: Web, cli: Cli, name: str) -> None:
    web.publish(name)
    web.running(name)
    try:
        result = cli("nodes", "drain", "alpha", "--no-wait")
        assert result.exit_code == 0
        assert result.stderr == "headgate: no other node can take the streams of alpha; they wait for one\n"
        assert result.stdout.startswith("alpha is draining: ")
        result = cli("nodes", "drain", "alpha", "--json")
        assert json.loads(result.stdout)["others"] == 0
        assert "It waits for a node: all are draining." in cli("explain", name).stdout
    finally:
        ok(cli("nodes", "undrain", "alpha"))
    web.running(name)


def test_a_node_that_died_is_forgotten_when_somebody_says_yes(web: Web, beta: Web, cli: Cli) -> None:
    id = data(cli("nodes", "list", "--json"))["items"][-1]["id"]
    beta.node.end(signal.SIGKILL)
    result = cli("nodes", "forget", "beta")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith("headgate: beta beat ")
    assert "s more (wait that long, or say yes if you know that its process has ended)" in result.stderr
    assert data(cli("nodes", "forget", id[:8], "--yes", "--json")).keys() == {"id", "name", "streams"}
    result = cli("nodes", "forget", "beta", "--yes")
    assert (result.exit_code, result.stderr) == (3, "headgate: node 'beta' does not exist (headgate nodes list)\n")


def test_the_node_that_answers_is_not_forgotten(cli: Cli) -> None:
    result = cli("nodes", "forget", "alpha", "--yes")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == "headgate: alpha is alive: it answers this call (headgate nodes drain alpha)\n"


def test_a_name_that_two_nodes_have_is_refused(web: Web, cli: Cli) -> None:
    ids = [uuid4(), uuid4()]
    for id in ids:
        row = f"('{id}', 'twin', 60, '0', true)"
        web.execute(f"INSERT INTO headgate.node (id, name, lease_s, version, draining) VALUES {row}")
    for command in (("drain",), ("undrain",), ("forget", "--yes")):
        result = cli("nodes", command[0], "twin", *command[1:])
        assert (result.exit_code, result.stdout) == (4, "")
        assert "node 'twin' is ambiguous: 2 have this name" in result.stderr
        assert all(str(id) in result.stderr for id in ids)
    for id in ids:
        assert ok(cli("nodes", "forget", str(id), "--yes")) == "forgot twin: 0 streams freed\n"


@pytest.mark.parametrize("command", [("drain",), ("undrain",), ("forget",), ("forget", "--yes")])
@pytest.mark.parametrize("node", ["nobody", "abc", "a b", "é", "a?b=c", str(UUID(int=7))])
def test_an_unknown_node_is_exit_code_3(cli: Cli, command: tuple[str, ...], node: str) -> None:
    result = cli("nodes", command[0], node, *command[1:])
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == f"headgate: node {node!r} does not exist (headgate nodes list)\n"


@pytest.mark.parametrize("command", ["drain", "undrain", "forget"])
@pytest.mark.parametrize("name", ["", ".", ".."])
def test_what_would_lead_to_another_path_never_reaches_the_node(
    run: Run, node: FakeNode, command: str, name: str
) -> None:
    assert run("nodes", command, name).exit_code == 3
    assert not node.asked
    assert run("nodes", command, "a/b").exit_code == 3


# Waiting, with a node that does as the test says.

DRAINING = {"id": "5f1c8e7e-aaaa-4000-8000-000000000001", "name": "alpha", "draining": True, "streams": 2, "others": 1}
ROW = {
    **{key: DRAINING[key] for key in ("id", "name", "draining", "streams")},
    "beat": 9,
    "lease_s": 5.0,
    "address": None,
    "version": "0.1.0",
    "started_at": minutes_ago(3),
    "status": "draining",
    "silent_s": 0.4,
    "is_this": True,
}


def listing(node: FakeNode, *rows: dict[str, Any]) -> None:
    node.on("GET", "/api/nodes", {"items": list(rows)})


@pytest.fixture
def draining(node: FakeNode) -> None:
    node.on("POST", "/api/nodes/alpha/drain", DRAINING)
    listing(node, ROW)


@pytest.fixture
def then(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """Instead of waiting, look at what the node answers next."""
    found: list[list[dict[str, Any]]] = []
    monkeypatch.setattr(nodes_module.time, "sleep", lambda pause_s: listing(node, *found.pop(0)))
    return found


@pytest.mark.usefixtures("draining")
def test_draining_waits_until_no_stream_is_left(run: Run, then: list[Any]) -> None:
    then += [[{**ROW, "streams": 1}], [{**ROW, "streams": 0}]]
    result = run("nodes", "drain", "alpha")
    assert (result.exit_code, result.stdout) == (0, "drained alpha: 2 streams given back\n")
    assert (result.stderr, then) == ("", [])


@pytest.mark.usefixtures("draining")
def test_a_node_that_leaves_meanwhile_is_drained(run: Run, then: list[Any]) -> None:
    then += [[]]
    assert run("nodes", "drain", "alpha").exit_code == 0


@pytest.mark.usefixtures("draining")
def test_somebody_else_may_end_the_draining(run: Run, then: list[Any]) -> None:
    then += [[{**ROW, "draining": False}]]
    result = run("nodes", "drain", "alpha")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == "headgate: somebody has ended the draining of alpha\n"


@pytest.mark.usefixtures("draining")
def test_without_waiting_nobody_looks(run: Run, node: FakeNode) -> None:
    result = run("nodes", "drain", "alpha", "--no-wait")
    assert result.stdout == "alpha is draining: 2 streams to give back\n"
    assert [asked.method for asked in node.asked] == ["POST"]
    assert json.loads(run("nodes", "drain", "alpha", "--no-wait", "--json").stdout) == DRAINING


def start(node: FakeNode, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "HEADGATE_URL": node.url}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([*COMMAND, *arguments], env=env, text=True, **options)


@pytest.mark.usefixtures("draining")
def test_ctrl_c_leaves_it_draining_and_says_so(node: FakeNode) -> None:
    process = start(node, "nodes", "drain", "alpha")
    while not any(asked.method == "GET" for asked in node.asked):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONG_S)
    assert (process.returncode, out) == (130, "")
    assert err == "headgate: alpha goes on draining without us (headgate nodes undrain alpha ends it)\n"


@pytest.mark.usefixtures("draining")
def test_on_a_terminal_a_line_says_how_many_are_left(node: FakeNode) -> None:
    ours, theirs = pty.openpty()
    process = start(node, "nodes", "drain", "alpha", stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"draining alpha: 2 streams left" not in seen:
        seen += os.read(ours, 1000)
    listing(node, {**ROW, "streams": 0})
    out, _ = process.communicate(timeout=LONG_S)
    assert (process.returncode, out) == (0, "drained alpha: 2 streams given back\n")
    os.close(ours)


# Starting what cannot start.


def test_a_start_says_why_nothing_starts(web: Web, cli: Cli, name: str) -> None:
    web.call("POST", "/api/datasources", {"name": f"{name}-draft", "source": GENERATOR, "sink": BLACKHOLE})
    finite = {"type": "generator", "rate": 1000, "count": 2}
    web.publish(f"{name}-finite", source=finite)
    web.wait_for(f"{name}-finite", lambda found: found["detail"] == "finished")
    web.publish(name, enabled=False)
    result = cli("ds", "start", f"{name}-draft", f"{name}-finite", name)
    assert (result.exit_code, result.stdout) == (4, f"started {name}\n")
    unpublished, finished = result.stderr.splitlines()
    draft = f"{name}-draft"
    assert unpublished == f"headgate: datasource {draft!r} has no published version (headgate ds publish {draft})"
    assert "is finished: its source has ended (headgate streams set-position" in finished
