"""A token goes to the installation that it is of, and to nobody else; a home knows which of its nodes answer."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from fake_node import INSTALLATION, FakeNode, Run, free_url

from headgate.cli import home as homes
from headgate.cli.home import Place

OTHER = "6a0c1f0e-0000-4000-8000-00000000000b"
DEAD = 2**22 + 1  # Above what Linux gives out.


@pytest.fixture(autouse=True)
def _elsewhere(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests say themselves where the node is."""
    monkeypatch.delenv("HEADGATE_URL")


@pytest.fixture
def kept(home: Path, node: FakeNode) -> Path:
    """A home that has a token of the fake node's installation, and knows where that node is."""
    node.on("GET", "/api/nodes", {"items": []})
    homes.settle(home, INSTALLATION)
    homes.keep_token(home, "hg_file")
    homes.add(home, Place(node.url, os.getpid()))
    return home


def tokens(node: FakeNode) -> list[str]:
    return [asked.token for asked in node.asked]


# Where a token goes.


def test_the_token_of_a_home_goes_to_its_installation(run: Run, node: FakeNode, kept: Path) -> None:
    assert run("nodes", "list").exit_code == 0
    assert run("nodes", "list", "--url", node.url).exit_code == 0
    assert tokens(node) == ["hg_file", "hg_file"]
    assert node.knocks == ["", ""]


def test_another_installation_on_the_same_port_gets_no_token_and_no_request(
    run: Run, node: FakeNode, kept: Path
) -> None:
    node.installation = OTHER
    for arguments in ((), ("--url", node.url)):
        result = run("nodes", "list", *arguments)
        assert result.exit_code == 4
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"headgate: {node.url} is a node of another installation than ")
        assert "--url" in line
        assert "--token" in line
    assert node.asked == []
    assert node.knocks == ["", ""]


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, None), (200, "<html>"), (200, {}), (200, {"installation": 5}), (200, "[1]"), (401, None), (500, None)],
)
def test_a_program_that_is_no_node_gets_no_token(
    run: Run, node: FakeNode, kept: Path, status: int, body: object
) -> None:
    node.installation = None
    node.on("GET", "/api/installation", body, status)
    result = run("nodes", "list")
    assert result.exit_code != 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"headgate: {node.url} is not a Headgate node of this release (")
    assert set(tokens(node)) == {""}


def test_a_token_that_was_given_goes_to_the_url_that_was_given(run: Run, node: FakeNode, kept: Path) -> None:
    node.installation = OTHER
    assert run("nodes", "list", "--url", node.url, "--token", "hg_flag").exit_code == 0
    assert tokens(node) == ["hg_flag"]


def test_a_token_that_was_given_without_a_url_goes_to_the_installation_of_the_home_only(
    run: Run, node: FakeNode, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", "hg_env")
    assert run("nodes", "list").exit_code == 0
    assert tokens(node) == ["hg_env"]
    node.installation = OTHER
    result = run("nodes", "list")
    assert result.exit_code == 4
    assert "is a node of another installation" in result.stderr
    assert tokens(node) == ["hg_env"]


def test_a_token_whose_installation_nobody_knows_goes_nowhere(run: Run, node: FakeNode, kept: Path) -> None:
    (kept / "installation").unlink()
    for arguments in ((), ("--token", "hg_flag"), ("--url", node.url)):
        result = run("nodes", "list", *arguments)
        assert result.exit_code == 4
        assert len(result.stderr.splitlines()) == 1
        assert "of which installation" in result.stderr
    assert node.asked == []


def test_a_home_without_a_token_does_not_command_another_installation_either(
    run: Run, node: FakeNode, kept: Path
) -> None:
    (kept / "token").unlink()
    node.installation = OTHER
    assert run("nodes", "list").exit_code == 4
    assert node.asked == []
    assert run("nodes", "list", "--url", node.url).exit_code == 0


def test_a_redirect_takes_no_token_along(run: Run, node: FakeNode, kept: Path) -> None:
    elsewhere = FakeNode()
    elsewhere.on("GET", "/api/nodes", {"items": []})
    node.redirects["/api/nodes"] = f"{elsewhere.url}/api/nodes"
    assert run("nodes", "list").exit_code != 0
    node.redirects["/api/installation"] = f"{elsewhere.url}/api/installation"
    assert run("nodes", "list").exit_code != 0
    assert (elsewhere.asked, elsewhere.knocks) == ([], [])
    elsewhere.close()


def test_a_stream_asks_whose_node_it_is_too(run: Run, node: FakeNode, kept: Path) -> None:
    node.installation = OTHER
    assert run("ds", "events", "orders", "--follow").exit_code == 4
    assert node.asked == []


# Several nodes in one home.


def test_a_second_node_neither_hides_nor_removes_the_first(home: Path) -> None:
    first, second = Place("http://127.0.0.1:1", os.getpid()), Place("http://127.0.0.1:2", os.getppid())
    homes.add(home, first)
    homes.add(home, second)
    assert homes.places(home) == [first, second]
    assert json.loads((home / "node.json").read_text())["url"] == first.url
    homes.remove(home, second.url)
    assert homes.places(home) == [first]
    homes.add(home, second)
    homes.remove(home, first.url)
    assert homes.places(home) == [second]
    homes.remove(home, second.url)
    assert not (home / "node.json").exists()


def test_a_killed_node_is_passed_over_and_forgotten_by_the_next(run: Run, node: FakeNode, kept: Path) -> None:
    (kept / "node.json").unlink()
    homes.add(kept, Place(free_url(), DEAD))
    homes.add(kept, Place(node.url, os.getpid()))
    assert [place.url for place in homes.places(kept)] == [node.url]
    dead = {"url": free_url(), "pid": DEAD, "others": [{"url": node.url, "pid": os.getpid()}]}
    (kept / "node.json").write_text(json.dumps(dead))
    assert run("nodes", "list").exit_code == 0
    assert tokens(node) == ["hg_file"]


def test_of_several_nodes_one_is_asked_that_answers_for_this_installation(run: Run, node: FakeNode, kept: Path) -> None:
    foreign = FakeNode()
    foreign.installation = OTHER
    (kept / "node.json").unlink()
    for url in (free_url(), foreign.url, node.url):
        homes.add(kept, Place(url, os.getpid()))
    assert run("nodes", "list").exit_code == 0
    assert tokens(node) == ["hg_file"]
    assert foreign.asked == []
    foreign.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"url": 5}', '{"url": "x", "others": 5}', '{"others": [1, {}]}'])
def test_a_file_that_is_damaged_is_as_good_as_none(run: Run, home: Path, text: str) -> None:
    (home / "node.json").write_text(text)
    result = run("nodes", "list")
    assert result.exit_code == 1
    homes.add(home, Place("http://127.0.0.1:1", os.getpid()))
    assert homes.places(home)[0].url == "http://127.0.0.1:1"


# The files.


def test_a_token_is_kept_for_its_owner_alone_and_follows_no_link(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("untouched")
    (home / "token").symlink_to(target)
    (home / "token.new").symlink_to(target)
    homes.keep_token(home, "hg_file")
    assert target.read_text() == "untouched"
    found = (home / "token").lstat()
    assert stat.S_ISREG(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert homes.read_token(home) == "hg_file"


def test_the_token_of_another_installation_is_put_aside_and_comes_back(home: Path) -> None:
    homes.settle(home, INSTALLATION)
    homes.keep_token(home, "hg_first")
    homes.settle(home, OTHER)
    assert homes.read_token(home) is None
    homes.keep_token(home, "hg_second")
    homes.settle(home, INSTALLATION)
    assert (homes.read_token(home), homes.installation(home)) == ("hg_first", INSTALLATION)
    homes.settle(home, OTHER)
    assert (homes.read_token(home), homes.installation(home)) == ("hg_second", OTHER)


# What a folder that somebody else has made can do.


def test_a_home_leads_to_nodes_of_this_machine_only(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder from elsewhere, unpacked and entered, must not be told the token of the environment."""
    homes.settle(home, INSTALLATION)
    for url in (
        "http://192.0.2.77:8470",
        "https://evil.example",
        "http://[2001:db8::1]:1",
        "http://",
        "x",
        "ftp://127.0.0.1",
    ):
        (home / "node.json").write_text(json.dumps({"url": url, "pid": os.getpid()}))
        assert homes.places(home) == []
    for url in ("http://127.0.0.1:1", "https://[::1]:1", "http://localhost:1"):
        (home / "node.json").write_text(json.dumps({"url": url, "pid": os.getpid()}))
        assert [place.url for place in homes.places(home)] == [url]


def test_the_doctor_does_not_call_a_node_well_that_this_home_does_not_know(
    run: Run, node: FakeNode, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With neither a database nor an installation to compare it with; and with another one."""
    node.on("GET", "/readyz", {"status": "ok"})
    monkeypatch.setattr("headgate.cli.client.DEFAULT_URL", node.url)
    assert f"! node        {node.url} is a node of an installation that {home} does not know" in run("doctor").stdout
    homes.settle(home, OTHER)
    result = run("doctor")
    assert result.exit_code == 1
    assert f"✗ node        {node.url} is a node of another installation" in result.stdout
    homes.settle(home, INSTALLATION)
    assert f"✓ node        {node.url}: ok" in run("doctor").stdout
