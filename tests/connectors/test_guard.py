"""The guard on real files, sockets and names."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.connectors import guard as guarded
from headgate.connectors.files.options import FilesSinkOptions, FilesSourceOptions
from headgate.connectors.files.sink import FilesSink
from headgate.connectors.files.source import FilesSource
from headgate.connectors.guard import Bound, Guard, OutOfReach
from headgate.connectors.places import Place, places_of_url
from headgate.connectors.plugins import open_reader, open_writer
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.core.reach import AddressRule, Kind, Reach, rule_from_text
from headgate.errors import Cause, ConnectorError, HeadgateError
from headgate.store.embedded import EmbeddedServer
from headgate.testing.factories import make_context, make_grant


def bounded(*folders: Path, addresses: tuple[str, ...] = (), never: tuple[Path, ...] = ()) -> Guard:
    rules = tuple(map(rule_from_text, addresses))
    return Guard((Bound(Reach(tuple(map(str, folders)), rules, ())),), tuple(map(str, never)))


# Files.


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A folder that is allowed, next to one that is not."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.jsonl").write_text('{"id":1}\n')
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "own.jsonl").write_text('{"id":2}\n')
    (folder / "link.jsonl").symlink_to("../out/precious.jsonl")
    (folder / "way").symlink_to("../out")
    (folder / "round").symlink_to("deep")
    return folder


WAYS_OUT = [
    "../out/precious.jsonl",
    "link.jsonl",
    "way/precious.jsonl",
    "deep/../../out/precious.jsonl",
    "way/new.jsonl",
]


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_no_path_leads_out(inside: Path, way: str) -> None:
    path = str(inside / way)
    guard = bounded(inside)
    with pytest.raises(OutOfReach, match="folder that may be reached"):
        guard.open(path)
    context = make_context(guard=guard)
    sink = FilesSink(FilesSinkOptions(path=path), context)
    for pattern in (path, path.replace("precious", "prec*"), path.replace(".jsonl", "*")):
        source = FilesSource(FilesSourceOptions(path=pattern), context)
        with pytest.raises(ConnectorError) as caught:
            await source.open(None)
        assert caught.value.cause is Cause.CONFIG
    with pytest.raises(OutOfReach):
        await sink.open(make_grant())
    assert (inside / "../out/precious.jsonl").read_text() == '{"id":1}\n'
    assert not (inside / "../out/new.jsonl").exists()


async def test_what_is_inside_is_read_and_written(inside: Path) -> None:
    context = make_context(guard=bounded(inside))
    source = FilesSource(FilesSourceOptions(path=str(inside / "o*.jsonl")), context)
    await source.open(None)
    assert (await source.read()).records == [{"id": 2}]
    await FilesSink(FilesSinkOptions(path=str(inside / "round/new.jsonl")), context).open(make_grant())
    assert (inside / "deep/new.jsonl").exists()


async def test_a_position_that_names_another_file_reads_nothing_of_it(inside: Path) -> None:
    source = FilesSource(FilesSourceOptions(path=str(inside / "*.jsonl")), make_context(guard=bounded(inside)))
    with pytest.raises(OutOfReach):
        await source.open({"file": str(inside / "../out/precious.jsonl"), "offset": 0})


@pytest.mark.parametrize("swapped", ["deep", "deep/own.jsonl"])
def test_a_symlink_that_comes_between_judging_and_opening_is_not_followed(
    inside: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    (inside / "deep/own.jsonl").write_text("")
    (inside / "../out/own.jsonl").write_text("precious")
    guard, judge = bounded(inside), Guard.path

    def judge_then_swap(self: Guard, path: str) -> str:
        resolved = judge(self, path)
        target = inside / swapped
        target.rename(inside / "moved")
        target.symlink_to(inside / ("../out" if swapped == "deep" else "../out/own.jsonl"))
        return resolved

    monkeypatch.setattr(guarded.Guard, "path", judge_then_swap)
    with pytest.raises(OSError, match=r"symbolic|directory"):
        guard.open(str(inside / "deep/own.jsonl"), os.O_RDWR | os.O_CREAT)


def test_headgates_own_folder_is_out_of_reach_even_without_bounds(tmp_path: Path) -> None:
    home = tmp_path / ".headgate"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    guard = Guard(never=(str(home),))
    for path in (home, home / "token", tmp_path / "link/token", tmp_path / "a/../.headgate/token"):
        with pytest.raises(OutOfReach, match="Headgate's own"):
            guard.path(path)
    assert guard.path(tmp_path / "token") == str(tmp_path / "token")


def test_a_pipe_and_a_device_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OutOfReach, match="not a regular file"):
            Guard().open(path)


@pytest.mark.parametrize("scheme", ["csv", "jsonl", "json", "parquet", "sqlite"])
async def test_no_dump_reads_or_writes_outside(inside: Path, scheme: str) -> None:
    guard = bounded(inside)
    for way in ("../out", "way", "way/x.db", "link.jsonl", "../out/*.csv"):
        url = f"{scheme}:{inside / way}"
        with pytest.raises(HeadgateError, match="may be reached"):
            await open_reader(url, guard=guard).tables()
        with pytest.raises(HeadgateError, match="may be reached"):
            await open_writer(url, guard=guard).look("orders")
    assert os.listdir(inside / "../out") == ["precious.jsonl"]


async def test_a_symlink_among_the_files_of_a_dump_is_judged_too(inside: Path) -> None:
    with pytest.raises(OutOfReach):
        await open_reader(f"jsonl:{inside}", guard=bounded(inside)).tables()
    (inside / "orders").symlink_to("../out")
    with pytest.raises(OutOfReach):
        await open_writer(f"jsonl:{inside}", guard=bounded(inside)).look("orders")


def test_a_module_that_is_on_no_list_is_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    for factory in ("os:getcwd", f"{file}:Orders", "headgate.connectors.own:OwnReader"):
        with pytest.raises(OutOfReach, match="is no Python module"):
            open_reader("own://x", factories=[factory], guard=bounded(tmp_path))
    assert not (tmp_path / "ran").exists()


# What a URL names.


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql://u@db/x", ["db:5432"]),
        ("postgresql://u:p%40@db:6432/x", ["db:6432"]),
        ("postgresql://a,b:6000/x", ["a:5432", "b:6000"]),
        ("postgresql:///x?host=db&port=1,2", ["db:1", "db:2"]),
        ("postgresql:///x?host=a,b&port=1,2", ["a:1", "b:2"]),
        ("postgresql:///x?host=a,b&port=1", ["a:1", "b:1"]),
        ("postgresql://c/x?host=a,b&port=1,2", ["c:1", "c:2", "a:1", "a:2", "b:1", "b:2"]),
        ("postgresql://[::1]:5433/x", ["::1:5433"]),
        ("postgresql://a/x?host=b", ["a:5432", "b:5432"]),
        ("postgresql:///x?host=/run/postgresql", ["/run/postgresql"]),
        ("postgresql://%2Frun%2Fpg/x", ["/run/pg"]),
        ("postgresql:///x", ["localhost:5432"]),
        ("postgresql://db/x?passfile=/etc/shadow", ["db:5432", "/etc/shadow"]),
        ("postgresql://db/x?SSLKEY=key.pem&sslcert=c", ["db:5432", "key.pem", "c"]),
        ("postgresql://db/x?sslrootcert=%2Fetc%2Fx", ["db:5432", "/etc/x"]),
        ("postgresql://db/x?pass%66ile=a", ["db:5432", "a"]),
        ("postgresql://db/x?service=mine&servicefile=s", ["db:5432", "~/.pg_service.conf", "s"]),
        ("postgresql://db/x?later_option=/etc/x", ["db:5432", "/etc/x"]),
        ("postgresql://db/x?password=/hidden&sslpassword=~hidden", ["db:5432"]),
        ("mysql://db/x?ssl_ca=ca.pem&unix_socket=/run/m.sock", ["db:3306", "ca.pem", "/run/m.sock"]),
        ("mongodb://a,b:1/x?tlsCAFile=ca.pem", ["a:27017", "b:1", "ca.pem"]),
        ("https://api.example.com/v1", ["api.example.com:443"]),
        ("sqlite:a/b.db", ["a/b.db"]),
        ("file:///etc/passwd", ["/etc/passwd"]),
        ("strange://db/x", ["db:*"]),
    ],
)
def test_a_url_names_hosts_and_files(url: str, named: list[str]) -> None:
    assert list(map(str, places_of_url(url))) == named


@pytest.mark.parametrize("parameter", ["passfile", "sslkey", "sslcert", "sslrootcert", "sslcrl", "servicefile"])
def test_files_in_a_url_are_judged_before_anything_reads_them(inside: Path, parameter: str) -> None:
    guard = bounded(inside, addresses=("127.0.0.1:1",))
    url = f"postgresql://u@127.0.0.1:1/x?sslmode=verify-ca&{parameter}={inside / 'link.jsonl'}"
    with pytest.raises(OutOfReach, match="folder that may be reached"):
        open_reader(url, guard=guard)


# Connections.


@pytest.fixture
def listening() -> Iterator[int]:
    """A port at which somebody accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def name_of(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Have the name `db.example.com` resolve to these, one after another."""
    resolve, left = socket.getaddrinfo, list(addresses)

    def answer(host: str, port: int, *args: object, **kwargs: object) -> object:
        if host == "db.example.com":
            host = left.pop(0) if len(left) > 1 else left[0]
        return resolve(host, port, type=socket.SOCK_STREAM)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


async def test_a_connection_is_made_to_the_address_that_was_judged(
    listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name points elsewhere when it is asked again, which nobody does."""
    name_of(monkeypatch, "127.0.0.1", "127.0.0.2")
    guard = bounded(addresses=(f"127.0.0.1:{listening}",))
    loop = guard.loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, "db.example.com", listening)
    assert transport.get_extra_info("peername") == ("127.0.0.1", listening)
    transport.close()
    with pytest.raises(OutOfReach, match="address that may be reached"):
        await loop.create_connection(asyncio.Protocol, "db.example.com", listening)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f.1", "0177.1", "localhost", "db.example.com", "127.1"]
)
async def test_postgres_mysql_and_mongodb_connect_to_nothing_else(
    listening: int, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    name_of(monkeypatch, "127.0.0.1")
    guard = bounded(addresses=("db.example.com:*", f"10.0.0.0/8:{listening}"))
    for scheme in ("postgresql", "mysql", "mongodb"):
        with pytest.raises(OutOfReach, match=r"address that may be reached|cannot be bound"):
            await open_reader(f"{scheme}://u@{host}:{listening}/x", guard=guard).tables()
    sink = PostgresSink(
        PostgresOptions(url=f"postgresql://u@{host}:{listening}/x", table="t"), make_context(guard=guard)
    )
    with pytest.raises(OutOfReach):
        await sink.check()
    with pytest.raises(OutOfReach):
        await sink.open(make_grant())


# Ways to an address that is on no list. Each must be refused whatever is on the list for a name, and pass once the
# address itself is on it.
ESCAPES = {
    "loopback": ("127.0.0.1", "127.0.0.1"),
    "loopback, IPv6": ("::1", "[::1]"),
    "mapped": ("::ffff:127.0.0.1", "127.0.0.1"),
    "mapped, in hexadecimal": ("::ffff:7f00:1", "127.0.0.1"),
    "NAT64": ("64:ff9b::7f00:1", "127.0.0.1"),
    "6to4": ("2002:7f00:1::", "127.0.0.1"),
    "compatible": ("::127.0.0.1", "127.0.0.1"),
    "link-local": ("169.254.10.10", "169.254.10.10"),
    "metadata": ("169.254.169.254", "169.254.169.254"),
    "metadata, mapped": ("::ffff:169.254.169.254", "169.254.169.254"),
    "metadata, NAT64": ("64:ff9b::a9fe:a9fe", "169.254.169.254"),
    "metadata of another cloud": ("100.100.100.200", "100.100.100.200"),
    "metadata, IPv6": ("fd00:ec2::254", "[fd00:ec2::254]"),
    "this network": ("0.0.0.0", "0.0.0.0"),
    "unspecified": ("::", "[::]"),
}


@pytest.mark.parametrize("way", ESCAPES)
async def test_a_name_that_resolves_to_the_machine_or_its_network_is_refused(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Asynchronously and in a thread: the owner of the name decides where it points."""
    resolved, rule = ESCAPES[way]
    name_of(monkeypatch, resolved)
    named = bounded(addresses=("db.example.com:*", "10.0.0.0/8:*"))
    with pytest.raises(OutOfReach, match="address that may be reached"):
        await named.resolve("db.example.com", 80)
    with pytest.raises(OutOfReach, match="address that may be reached"):
        named.connect("db.example.com", 80, 0.1)
    assert await bounded(addresses=(f"{rule}:80",)).resolve("db.example.com", 80)
    with pytest.raises(OutOfReach):
        await bounded(addresses=(f"{rule}:81",)).resolve("db.example.com", 80)


@pytest.mark.parametrize("text", ["2130706433", "0x7f000001", "017700000001", "0177.0.0.1", "127.1", "0x7f.0.1"])
async def test_a_number_in_any_spelling_is_the_address_that_a_client_would_reach(text: str) -> None:
    guard = bounded(addresses=("db.example.com:*", "10.0.0.0/8:*"))
    assert guard.problem(Place(Kind.ADDRESS, text, 80)) is not None
    with pytest.raises(OutOfReach):
        await guard.resolve(text, 80)
    with pytest.raises(OutOfReach):
        guard.connect(text, 80, 0.1)
    assert await bounded(addresses=("127.0.0.1:80",)).resolve(text, 80) == ["127.0.0.1"]


@pytest.mark.parametrize("address", ["10.1.2.3", "172.16.0.1", "192.168.1.1", "fd00::1", "100.64.0.1"])
async def test_a_private_address_is_reached_only_if_it_or_its_name_is_listed(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    name_of(monkeypatch, address)
    for guard in (bounded(), bounded(addresses=("other.example.com:*", "203.0.113.0/24:*"))):
        with pytest.raises(OutOfReach):
            await guard.resolve("db.example.com", 80)
        with pytest.raises(OutOfReach):
            await guard.resolve(address, 80)
    assert await bounded(addresses=("db.example.com:80",)).resolve("db.example.com", 80) == [address]


async def test_a_name_that_turns_private_after_it_was_judged_is_judged_again(
    monkeypatch: pytest.MonkeyPatch, listening: int
) -> None:
    """Rebinding: public when it is checked, the machine itself when it is connected to. And of several addresses only
    those that may be reached are left."""
    guard = bounded(addresses=("db.example.com:*",))
    name_of(monkeypatch, "203.0.113.5", "127.0.0.1")
    assert await guard.resolve("db.example.com", listening) == ["203.0.113.5"]
    with pytest.raises(OutOfReach):
        await guard.loop().create_connection(asyncio.Protocol, "db.example.com", listening)
    with pytest.raises(OutOfReach):
        guard.connect("db.example.com", listening, 0.1)

    def both(*args: object, **kwargs: object) -> object:
        return [(2, 1, 6, "", ("203.0.113.5", 80)), (2, 1, 6, "", ("127.0.0.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert await guard.resolve("db.example.com", 80) == ["203.0.113.5"]


async def test_every_hop_of_a_redirect_is_judged_for_itself(listening: int) -> None:
    """A client that is sent on connects through the same loop: that the first hop was allowed says nothing."""
    guard = bounded(addresses=(f"127.0.0.1:{listening}",))
    loop = guard.loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", listening)
    transport.close()
    for host, port in (("169.254.169.254", 80), ("127.0.0.1", listening + 1), ("2130706433", 80), ("::1", listening)):
        with pytest.raises(OutOfReach):
            await loop.create_connection(asyncio.Protocol, host, port)


async def test_a_socket_in_a_folder_is_a_path(server: EmbeddedServer, inside: Path) -> None:
    guard = bounded(inside, addresses=("127.0.0.1:*",))
    with pytest.raises(OutOfReach, match="folder that may be reached"):
        open_reader(server.url, guard=guard)
    sink = PostgresSink(PostgresOptions(url=server.url, table="t"), make_context(guard=guard))
    with pytest.raises(OutOfReach):
        await sink.check()


async def test_a_service_record_or_several_hosts_of_mongodb_cannot_be_bound() -> None:
    guard = Guard((Bound(Reach(addresses=(AddressRule(network=None, host="db.example.com"),))),))
    named = "mongodb://db.example.com/x"  # The client resolves it by itself.
    for url in ("mongodb+srv://db.example.com/x", "mongodb://db.example.com,db.example.com:1/x", named):
        with pytest.raises(OutOfReach, match="cannot be bound"):
            await open_reader(url, guard=guard).tables()


def test_an_error_names_the_command_or_the_setting(tmp_path: Path) -> None:
    place = Place(Kind.ADDRESS, "db", 5432)
    of_lists, of_node = Bound(Reach((), (), ())), Bound(Reach((), (), ()), is_nodes=True)
    found = Guard((of_lists,)).problem(place)
    assert found is not None
    assert found.hint == "an admin may publish it, or allow it: headgate allow add address db:5432"
    for one, setting in (
        (place, "HEADGATE_ADDRESSES"),
        (Place(Kind.FOLDER, str(tmp_path)), "HEADGATE_FILES"),
        (Place(Kind.MODULE, "os"), "HEADGATE_MODULES"),
    ):
        found = Guard((of_node,)).problem(one)
        assert found is not None
        assert setting in found.hint


async def test_the_real_driver_connects_through_the_guard(server: EmbeddedServer) -> None:
    """With everything allowed that it reaches, a bounded session works as an open one does."""
    folder = Path(server.url.partition("host=")[2].partition("&")[0])
    reader = open_reader(server.url, guard=bounded(folder.resolve(), addresses=("127.0.0.1:1",)))
    try:
        assert isinstance(await reader.tables(), list)
    finally:
        await reader.close()
