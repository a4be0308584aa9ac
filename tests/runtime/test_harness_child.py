"""The process of a test: whatever a connector does to it is an answer, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors import plugins
from headgate.connectors.bounds import WireGuard
from headgate.connectors.guard import OPEN, Bound, Guard
from headgate.core.harness.results import Given
from headgate.core.reach import Reach, rule_from_text
from headgate.datasources.documents import content_of
from headgate.errors import Busy, HeadgateError
from headgate.runtime.harness import children as node_side
from headgate.runtime.harness.children import Children, Ran
from headgate.runtime.harness.wire import Case, Job, Limits, Stage, Unpacker, pack
from headgate.text import duration
from tests import harness_connector
from tests.waiting import LONG_S, until

IS_ROOT = os.getuid() == 0
NOBODY = 65534


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The connector of these tests is known, to the processes as well."""
    folder = tmp_path_factory.mktemp("rogue") / "installed"
    harness_connector.install(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("HEADGATE_MASTER_KEY", "must not be seen")
        plugins._entries.cache_clear()
        yield folder
    plugins._entries.cache_clear()
    plugins.get.cache_clear()


@pytest.fixture(scope="module")
def children(installed: Path) -> Iterator[Children]:
    """One zygote for all tests: its imports take longer than most of them."""
    made = Children("nobody")
    yield made
    asyncio.run(made.close())


def job(does: str, value: str = "", *, fetch: int = 10, guard: Guard = OPEN, **more: Any) -> Job:
    content = content_of({"type": "rogue", "does": does, "value": value}, None, {"type": "blackhole"}, {})
    wire = WireGuard.of(guard)
    return Job("orders", content, {}, wire, wire, wire, [Case(fetch=fetch)], **more)


async def ran(children: Children, does: str, value: str = "", *, wall_s: float = 30.0, **more: Any) -> Ran:
    network = bool(more.pop("has_network", False))
    limits = Limits(wall_s, **{name: more.pop(name) for name in ("cpu_s", "memory_bytes") if name in more})
    return await children.run(job(does, value, **more), limits, has_network=network)


async def past_its_start(run: Callable[[float], Awaitable[Ran]]) -> tuple[float, Ran]:
    """A run that had enough time to begin its work, and how much that was: on a busy machine a second is not enough."""
    for wall_s in (1.0, 5.0, 25.0):
        found = await run(wall_s)
        if found.ending.how != "wall" or [one.name for one in found.messages if isinstance(one, Stage)][1:]:
            break
    return wall_s, found


# What it does to itself.


@pytest.mark.parametrize("does", ["loop", "sleep", "ignore"])
async def test_one_that_never_ends_is_killed_in_time(children: Children, does: str) -> None:
    """In a loop, asleep, or deaf to signals."""
    wall_s, found = await past_its_start(lambda wall_s: ran(children, does, wall_s=wall_s, cpu_s=60))
    assert found.trouble == f"it took longer than {duration(wall_s)} and was killed, while reading, after 0 records"


async def test_one_that_uses_up_its_cpu_time_is_killed(children: Children) -> None:
    found = await ran(children, "loop", cpu_s=1)
    assert "signal 24: it used up its CPU time" in found.trouble


@pytest.mark.parametrize("value", ["", "leaves its group"])
async def test_a_fork_bomb_is_killed_as_a_whole(children: Children, value: str, installed: Path) -> None:
    found = await ran(children, "fork", value, wall_s=1.0)
    assert found.ending.how in ("wall", "memory", "signal"), found.trouble
    await until_gone(children, installed)


async def test_what_it_leaves_behind_ends_with_it(children: Children, installed: Path) -> None:
    found = await ran(children, "children")
    assert found.trouble == ""
    await until_gone(children, installed)


async def test_one_that_eats_memory_is_stopped(children: Children) -> None:
    found = await ran(children, "memory", cpu_s=30, memory_bytes=100_000_000)
    troubles = [one.message for one in found.troubles]
    assert found.ending.how == "memory" or any("memory" in one for one in troubles), (found.trouble, troubles)


async def test_of_many_records_as_many_are_taken_as_were_asked_for(children: Children) -> None:
    found = await ran(children, "many")
    assert found.trouble == ""
    assert [one.before for one in found.outcomes] == [{"id": i} for i in range(10)]


async def test_results_beyond_the_limit_are_cut(children: Children) -> None:
    found = await ran(children, "many", fetch=1000, results=50)
    assert found.finished is not None
    assert found.finished.is_cut
    assert len(found.outcomes) == 50


async def test_one_that_answers_too_much_is_killed(children: Children) -> None:
    found = await ran(children, "flood", fetch=1000)
    assert found.ending.how == "output"
    assert found.trouble.startswith("it wrote more than 16.8 MB and was killed, while reading, after ")


async def test_one_that_writes_to_its_output_without_end_is_killed(children: Children) -> None:
    found = await ran(children, "write")
    assert found.ending.how == "output"
    assert found.output.startswith(b"xxxx")
    assert len(found.output) <= node_side.SHOWN_BYTES


async def test_one_that_exits_is_told_with_its_code(children: Children) -> None:
    found = await ran(children, "exit")
    assert found.trouble == "the process exited with code 3, while reading, after 0 records"


async def test_a_segmentation_fault_is_told(children: Children) -> None:
    found = await ran(children, "segfault")
    assert found.trouble == ("the process ended with signal 11: a segmentation fault, while reading, after 0 records")


async def test_a_bug_is_told_without_a_secret(children: Children) -> None:
    content = content_of(
        {"type": "rogue", "does": "raise", "value": "s3cret-value-of-it"}, None, {"type": "blackhole"}, {}
    )
    wire = WireGuard.of(OPEN)
    asked = Job("orders", content, {"s": "s3cret-value-of-it"}, wire, wire, wire, [Case(fetch=1)])
    found = await children.run(asked, Limits(), has_network=False)
    assert [one.message for one in found.troubles] == ["RuntimeError: a bug that says ***"]
    assert "s3cret" not in str(found.lines)
    assert any(one.text == "opened" for one in found.lines)


async def test_a_connector_that_is_gone_or_broken_is_told(children: Children) -> None:
    content = content_of({"type": "none"}, None, {"type": "blackhole"}, {})
    wire = WireGuard.of(OPEN)
    found = await children.run(Job("orders", content, {}, wire, wire, wire, [Case()]), Limits(), has_network=False)
    assert "connector 'none' does not exist" in found.troubles[0].message


async def test_a_mappings_own_function_that_never_ends_is_killed_too(children: Children) -> None:
    mapping = {"python": "tests.harness_connector:never_ends"}
    content = content_of({"type": "webhook"}, mapping, {"type": "blackhole"}, {})
    wire = WireGuard.of(OPEN)
    asked = Job("orders", content, {}, wire, wire, wire, [Case([Given(body=b"{}")])])
    wall_s, found = await past_its_start(lambda wall_s: children.run(asked, Limits(wall_s, 60), has_network=False))
    assert found.trouble == f"it took longer than {duration(wall_s)} and was killed, while reading, after 0 records"


async def test_a_record_too_large_to_show_has_its_outcome_all_the_same(children: Children) -> None:
    wire = WireGuard.of(OPEN)
    content = content_of({"type": "webhook"}, None, {"type": "blackhole"}, {})
    large = Given(body=b'{"text": "%s"}' % (b"x" * 2_000_000))
    asked = Job("orders", content, {}, wire, wire, wire, [Case([large])])
    found = await children.run(asked, Limits(), has_network=False)
    assert found.trouble == ""
    assert [(one.before, one.results[0].outcome, one.size_bytes > 2_000_000) for one in found.outcomes] == [
        (None, "written", True)
    ]


# What it is.


async def test_it_has_no_rights_no_settings_and_no_descriptors(children: Children, tmp_path: Path) -> None:
    secret = tmp_path / "master.key"
    secret.write_text("x")
    secret.chmod(0o600)
    found = await ran(children, "who", str(secret))
    seen = found.outcomes[0].before["value"] if "value" in found.outcomes[0].before else found.outcomes[0].before
    assert [name for name in seen["environment"] if "HEADGATE" in name or "TOKEN" in name] == []
    assert {one.partition(":")[0] for one in seen["files"]} <= {"/dev/null", "anon_inode", "socket"}
    assert len(seen["files"]) <= 8, seen["files"]
    assert seen["privileges"] == ["NoNewPrivs:\t1"]
    if IS_ROOT:
        assert seen["uid"] == NOBODY
        assert seen["groups"] == []
        assert seen["can_read"] is False


async def test_a_test_without_network_reaches_nothing(children: Children) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = await ran(children, "connect", f"127.0.0.1:{server.getsockname()[1]}")
        assert found.troubles[0].message.startswith("a test with a payload has no network")


async def test_a_connector_that_does_not_ask_its_guard_meets_a_wall(children: Children) -> None:
    """It opens a socket by itself, to an address that no guard has judged."""
    nothing = Guard((Bound(Reach((), (rule_from_text("10.0.0.1:1"),), ())),))
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        found = await ran(children, "connect", place, guard=nothing, has_network=True)
        assert "is no address that a guard has judged" in found.troubles[0].message
        found = await ran(children, "connect", place, has_network=True)
        assert found.outcomes[0].before == {"value": "connected"}


async def test_tests_do_not_see_each_other(children: Children) -> None:
    """Each is a fork of a process that holds no secret."""
    wire = WireGuard.of(OPEN)
    content = content_of({"type": "rogue", "does": "who"}, None, {"type": "blackhole"}, {})
    first = Job("orders", content, {"s": "value-of-the-first"}, wire, wire, wire, [Case(fetch=1)])
    await children.run(first, Limits(), has_network=False)
    assert children._zygote is not None
    memory = Path(f"/proc/{children._zygote.pid}/mem")
    assert not (IS_ROOT and _holds(memory, children._zygote.pid, b"value-of-the-" + b"first"))


def _holds(memory: Path, pid: int, text: bytes) -> bool:
    with memory.open("rb", 0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if "rw" in rights and "[v" not in line:
                first, last = (int(one, 16) for one in span.split("-"))
                file.seek(first)
                try:
                    if text in file.read(last - first):
                        return True
                except OSError:
                    continue
    return False


# The node's side.


async def test_more_tests_than_may_wait_are_told_so(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_side, "WAITING", 0)
    with pytest.raises(Busy, match="too many tests wait"):
        await ran(children, "nothing")


async def test_a_zygote_that_is_gone_is_started_again(children: Children) -> None:
    assert (await ran(children, "nothing")).trouble == ""
    assert children._zygote is not None
    children._zygote.kill()
    children._zygote.wait()
    assert (await ran(children, "nothing")).trouble == ""


async def test_what_a_zygote_takes_to_start_is_no_part_of_a_tests_time(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, may_go = tmp_path / "held", tmp_path / "may_go"
    text = f"import pathlib, time\npathlib.Path({str(held)!r}).touch()\n"
    text += f"while not pathlib.Path({str(may_go)!r}).exists():\n    time.sleep(0.02)\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    children, began = Children("nobody"), []
    watch = children._watch

    async def watched(*arguments: Any) -> None:
        began.append(may_go.exists())
        await watch(*arguments)

    monkeypatch.setattr(children, "_watch", watched)
    running = asyncio.create_task(ran(children, "nothing"))
    await until(held.exists)
    may_go.touch()
    assert (await running).trouble == ""
    assert began == [True]
    await children.close()


async def test_a_zygote_that_cannot_start_is_told(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    children = Children("nobody")
    for _ in range(2):
        with pytest.raises(HeadgateError, match="does not start"):
            await ran(children, "nothing")
    (tmp_path / "sitecustomize.py").unlink()
    assert (await ran(children, "nothing")).trouble == ""
    await children.close()


async def test_what_is_no_answer_ends_the_test() -> None:
    unpacker = Unpacker()
    frame = pack(Stage("reading"))
    assert unpacker.feed(frame[:5]) == []
    assert unpacker.feed(frame[5:] + frame) == [Stage("reading"), Stage("reading")]
    dear = b'{"type":"Stage","name":[' + b"1e308," * 100_000 + b"1]}"
    for bad in (b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\1x", len(dear).to_bytes(4) + dear):
        with pytest.raises(ValueError, match=r".*"):
            Unpacker().feed(bad)


async def test_a_body_goes_through_the_sources_own_decoding(children: Children) -> None:
    wire = WireGuard.of(OPEN)
    bodies = [Given(body=b'{"id": 1}'), Given(body=b"{broken"), Given(body=b"[1]")]
    found = []
    for source in ({"type": "webhook"}, {"type": "webhook", "format": "text"}, {"type": "push", "format": "text"}):
        content = content_of(source, None, {"type": "blackhole"}, {})
        done = await children.run(Job("o", content, {}, wire, wire, wire, [Case(bodies)]), Limits(), has_network=False)
        found.append([(one.results[0].outcome, one.results[0].stage, one.results[0].after) for one in done.outcomes])
    assert found[0] == [
        ("written", None, {"id": 1}),
        ("dead_lettered", "source", None),
        ("written", None, {"value": [1]}),
    ]
    assert (
        found[1]
        == found[2]
        == [
            ("written", None, {"body": '{"id": 1}'}),
            ("written", None, {"body": "{broken"}),
            ("written", None, {"body": "[1]"}),
        ]
    )


async def until_gone(children: Children, folder: Path) -> None:
    """The warden ends a moment after its answer; nothing else may be there."""
    assert children._zygote is not None
    deadline = time.monotonic() + LONG_S
    while left := left_of(folder, children._zygote.pid):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.02)


def left_of(folder: Path, zygote: int) -> list[str]:
    """The processes of this test that still run, but for the zygote: the folder is in their first environment."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) not in (zygote, os.getpid()):
            with suppress(OSError):  # It may end meanwhile.
                if str(folder).encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(Path(f"/proc/{name}/status").read_text())
    return found
