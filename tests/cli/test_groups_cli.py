"""`headgate groups` and `headgate streams move` against real nodes; and against a fake one where paths matter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fake_node import FakeNode, Run
from typer.testing import CliRunner, Result
from websockets.sync.client import ClientConnection, connect

from headgate.cli import app
from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S
from tests.web_node import Databases, Web, bearer, numbers, started

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
    variables = {"HEADGATE_NODE_NAME": "beta"}
    node = NodeProcess.start(tmp_path / "beta", database=web.database, token=web.node.token, environment=variables)
    with httpx.Client(base_url=node.url, headers=bearer(node.token), timeout=LONG_S) as client:
        yield Web(node, web.database, client)
    node.end()


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
    return result.stdout


def data(result: Result) -> Any:
    """What a machine gets, and nothing else."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class Taker:
    """A program that takes turns."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.consumer = ""

    def say(self, *frame: Any) -> None:
        self._socket.send(msgspec.msgpack.encode(frame))

    def hear(self, kind: str) -> list[Any]:
        """The next frame of this kind."""
        while True:
            frame = msgspec.msgpack.decode(self._socket.recv(timeout=LONG_S))
            if frame[0] == kind:
                return list(frame[1:])

    def take(self) -> int:
        """Until it is active, and has said so; returns the epoch."""
        epoch: int = self.hear("active")[2]
        self.say("confirm", self.consumer, epoch, "active")
        return epoch

    def cut(self) -> None:
        """Be gone without a word."""
        self._socket.close_timeout = 0.1
        self._socket.close()


@contextmanager
def joined(web: Web, stream: str, label: str, group: str = "g") -> Iterator[Taker]:
    with connect(web.node.url.replace("http", "ws") + "/groups", compression=None) as socket:
        taker = Taker(socket)
        taker.say("join", 1, web.node.token, stream, group, None, label, None, 60.0)
        taker.consumer = taker.hear("joined")[0]
        yield taker


def test_groups_are_listed_shown_and_explained(web: Web, cli: Cli, name: str) -> None:
    with joined(web, name, "one") as one, joined(web, name, "two"):
        epoch = one.take()
        web.until(lambda: cli("groups", "explain", name, "g").stdout, lambda text: f"{name} g: active" in text)
        text = ok(cli("groups", "explain", name, "g"))
        assert f"  one on alpha is active under epoch {epoch}, for " in text
        assert f"one: active, epoch {epoch}" in text
        lines = ok(cli("groups", "list", "--stream", name)).splitlines()
        assert lines[1].split()[:6] == [name, "g", "active", "one", "2", str(epoch)]
        text = ok(cli("groups", "show", name, "g"))
        assert "lease   60 s" in text
        assert "two       alpha  connected   waiting" in text
        assert data(cli("groups", "show", name, "g", "--json"))["members"][0]["label"] == "one"
        assert data(cli("groups", "list", "--json"))["more"] is False
        assert data(cli("groups", "explain", name, "g", "--json"))["status"] == "active"


def test_a_cut_list_says_so(web: Web, cli: Cli, name: str) -> None:
    with joined(web, name, "x", "a"), joined(web, name, "x", "b"):
        result = cli("groups", "list", "--stream", name, "--limit", "1")
        assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
        assert result.stderr == "headgate: not all are shown, only 1 group (--limit shows more, --stream fewer)\n"
    assert ok(cli("groups", "list", "--stream", "nothing")) == "no groups\n"


def test_who_may_still_believe_is_dropped_only_with_a_yes(web: Web, cli: Cli, name: str) -> None:
    with joined(web, name, "one") as one, joined(web, name, "two") as two:
        epoch = one.take()
        one.cut()
        web.until(lambda: cli("groups", "explain", name, "g").stdout, lambda text: "g: blocked" in text)
        assert "s left" in ok(cli("groups", "show", name, "g"))
        result = cli("groups", "evaluate", name, "g")
        assert (result.exit_code, result.stdout) == (4, "")
        assert result.stderr.startswith("headgate: consumers may still believe that they are active: one for up to ")
        assert ok(cli("groups", "evaluate", name, "g", "--yes")) == f"dropped from g of {name}: one; 1 consumer left\n"
        assert two.take() == epoch + 1
        assert data(cli("groups", "evaluate", name, "g", "--json"))["dropped"] == []


def test_names_with_slashes_and_dots_are_found(web: Web, cli: Cli, name: str) -> None:
    for stream, group in ((f"{name}/a b?c", "x/y"), ("..", "."), (f"{name}-é", "%2F")):
        with joined(web, stream, "one", group) as one:
            one.take()
            found = data(cli("groups", "show", stream, group, "--json"))
            assert (found["stream"], found["name"]) == (stream, group)
            assert cli("groups", "explain", stream, group).exit_code == 0
            assert cli("groups", "evaluate", stream, group).exit_code == 0


def test_the_nodes_that_run_a_stream_are_its_group(web: Web, cli: Cli, name: str) -> None:
    web.publish(name)
    web.running(name)
    text = ok(cli("groups", "explain", f"{name}:0"))
    assert text.startswith(f"{name}:0 workers: active\n  alpha has it under epoch ")
    assert "acquired" in text
    text = ok(cli("groups", "show", f"{name}:0"))
    assert "alpha     connected   active" in text
    assert f"{name}:0" in ok(cli("groups", "list"))
    result = cli("groups", "evaluate", f"{name}:0", "workers", "--yes")
    assert result.exit_code == 4
    assert result.stderr.startswith(f"headgate: the nodes settle who runs {name}:0 by themselves (")


@pytest.mark.parametrize("command", ["show", "explain", "evaluate"])
@pytest.mark.parametrize("stream", ["nobody", "a/b", "..", "é", "nobody:0"])
def test_an_unknown_group_is_exit_code_3(cli: Cli, command: str, stream: str) -> None:
    result = cli("groups", command, stream, "workers")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == f"headgate: group 'workers' of {stream!r} does not exist (headgate groups list)\n"


@pytest.mark.parametrize("command", ["show", "explain", "evaluate"])
def test_an_empty_name_never_reaches_the_node(run: Run, node: FakeNode, command: str) -> None:
    assert run("groups", command, "", "g").exit_code == 3
    assert run("groups", command, "s", "").exit_code == 3
    assert not node.asked


def test_names_are_quoted_as_one_part_of_the_path(run: Run, node: FakeNode) -> None:
    run("groups", "show", "a/b", "..")
    run("groups", "explain", "orders:0")
    assert [one.path for one in node.asked] == ["/api/groups/a%2Fb/%2E%2E", "/api/groups/orders:0/workers/explain"]


def test_a_viewer_may_look_and_not_act(web: Web, cli: Cli, name: str) -> None:
    web.publish(name, enabled=False)
    viewer = web.token("viewer")
    for looking in (("groups", "list"), ("groups", "show", f"{name}:0"), ("groups", "explain", f"{name}:0")):
        assert cli(*looking, token=viewer).exit_code == 0
    for acting in (("groups", "evaluate", name, "g"), ("streams", "move", f"{name}:0", "alpha")):
        result = cli(*acting, token=viewer)
        assert (result.exit_code, result.stdout) == (4, "")
        assert "this needs operator" in result.stderr


# Moving streams.


def test_a_stream_moves_to_the_node_that_is_named_and_stays_there(web: Web, beta: Web, cli: Cli, name: str) -> None:
    assert beta.node.url != web.node.url
    web.publish(name)
    web.running(name)

    def where() -> Any:
        return web.call("GET", f"/api/streams/{name}:0")["node"]

    here = where()
    there = "beta" if here == "alpha" else "alpha"
    assert ok(cli("streams", "move", f"{name}:0", there)) == f"{name}:0 moves from {here} to {there}\n"
    web.until(where, lambda node: node == there)
    assert ok(cli("streams", "move", f"{name}:0", there)) == f"{name}:0 stays on {there}\n"
    text = ok(cli("streams", "show", f"{name}:0"))
    assert re.search(rf"^wished +{there} ", text, re.MULTILINE)
    assert ", by the operator" in text
    assert f"An operator wants it on {there}, where it is." in ok(cli("groups", "explain", f"{name}:0"))
    done = data(cli("streams", "move", f"{name}:0", there, "--json"))
    assert (done["is_new"], done["wish"]["node"]) == (False, there)
    assert ok(cli("streams", "move", f"{name}:0", "--anywhere")) == f"{name}:0 is left to the planner\n"
    assert ok(cli("streams", "move", f"{name}:0", "--anywhere")) == f"{name}:0 was left to the planner already\n"
    assert web.events(name).count("stream_moved") == 1


def test_a_stream_that_nobody_runs_goes_where_it_was_wished_when_it_does(web: Web, cli: Cli, name: str) -> None:
    web.publish(name, enabled=False)
    assert ok(cli("streams", "move", f"{name}:0", "alpha")) == f"{name}:0 goes to alpha when it runs\n"


def test_what_cannot_move_is_refused(web: Web, cli: Cli, name: str) -> None:
    web.publish(name, assignment="modulo")
    result = cli("streams", "move", f"{name}:0", "alpha")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == f"headgate: {name}:0 is placed by its number (publish it with assignment: sticky)\n"
    result = cli("streams", "move", f"{name}:0", "nobody")
    assert (result.exit_code, result.stderr) == (3, "headgate: node 'nobody' does not exist (headgate nodes list)\n")
    assert cli("streams", "move", "nobody:0", "alpha").exit_code == 3


@pytest.mark.parametrize("arguments", [(), ("alpha", "--anywhere")])
def test_a_node_or_anywhere_and_not_both(run: Run, node: FakeNode, arguments: tuple[str, ...]) -> None:
    result = run("streams", "move", "orders:0", *arguments)
    assert (result.exit_code, node.asked) == (2, [])
    assert "give a NODE or --anywhere, and not both" in result.stderr
