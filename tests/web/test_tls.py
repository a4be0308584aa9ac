"""A node that speaks HTTPS itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import httpx
import pytest

from headgate.client import Consumer, PushClient
from headgate.config import Settings
from headgate.errors import ConfigError
from headgate.testing.processes import NodeProcess
from headgate.web import tls
from headgate.web.http.census import Census
from headgate.web.http.handshake import TlsListener
from headgate.web.http.limits import Limits
from headgate.web.server import bind
from tests.certificates import Authority, Pair
from tests.commands import headgate
from tests.waiting import LONG_S, wait_until
from tests.web_node import BLACKHOLE, Databases


@dataclass
class Secure:
    """A node with a certificate for 127.0.0.1."""

    node: NodeProcess
    authority: Authority
    pair: Pair

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.file))

    @property
    def port(self) -> int:
        return int(self.node.url.rpartition(":")[2])

    def get(self, path: str, token: str = "") -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.get(self.node.url + path, verify=self.trust, headers=headers)


@pytest.fixture(scope="module")
def secure(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    pair = authority.sign("node", "127.0.0.1", "localhost")
    flags = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    node = NodeProcess.start(tmp_path_factory.mktemp("tls"), database=databases.make(), flags=flags)
    yield Secure(node, authority, pair)
    node.end(signal.SIGKILL)


def test_a_node_with_a_certificate_says_https_and_advertises_it(secure: Secure) -> None:
    assert secure.node.url.startswith("https://127.0.0.1:")
    assert f"Headgate is up: {secure.node.url}\n" in secure.node.log()
    (found,) = secure.get("/api/nodes", secure.node.token).json()["items"]
    assert found["address"] == secure.node.url
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(secure.node.url)


def test_old_versions_of_tls_are_refused(secure: Secure) -> None:
    context = secure.trust
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", secure.port)) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
    context = secure.trust
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", secure.port)) as plain:
        assert context.wrap_socket(plain, server_hostname="127.0.0.1").version() == "TLSv1.2"


def test_plain_http_and_noise_are_closed_and_leave_no_trace_in_the_log(secure: Secure) -> None:
    before = secure.node.log()
    for sent in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 4096,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"",
    ):
        with socket.create_connection(("127.0.0.1", secure.port), timeout=LONG_S) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP" not in connection.recv(4096)
    assert secure.get("/healthz").json() == {"status": "ok"}
    added = secure.node.log().removeprefix(before)
    assert "Traceback" not in added
    assert "error" not in added.lower()


async def test_who_is_still_shaking_hands_is_counted_and_one_too_many_is_cut_off(tmp_path: Path) -> None:
    """In all and from one address. A place becomes free when the handshake fails, and stays taken when it succeeds."""
    authority = Authority(tmp_path)
    pair = authority.sign("node", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    trust = ssl.create_default_context(cafile=str(authority.file))
    for limits in (Limits(2, 5), Limits(5, 2)):
        census = Census(limits)
        sock = bind("127.0.0.1", 0, search=False)
        port = sock.getsockname()[1]
        listener = TlsListener(sock, context, census, partial(Counting, census))
        async with asyncio.timeout(LONG_S):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            while census.size < 2:
                await asyncio.sleep(0)
            reader, _ = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            assert census.size == 2
            silent[0][1].write(b"GET / HTTP/1.1\r\n\r\n")
            while census.size == 2:
                await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            assert census.size == 2
            listener.close()
            await listener.wait_closed()
            assert census.size == 1
            writer.close()
            while census.size:
                await asyncio.sleep(0)
        sock.close()


class Counting(asyncio.Protocol):
    """A connection that is counted, and says what it is told."""

    address = "127.0.0.1"

    def __init__(self, census: Census) -> None:
        self._census = census

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        assert not self._census.why_not(self.address)
        self._census.enter(self)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._census.leave(self)

    def look(self, now_s: float) -> None: ...


# Commands.


def test_commands_of_the_same_home_know_the_certificate_of_their_node(secure: Secure) -> None:
    found = headgate(secure.node.home, "nodes", "list")
    assert (found.returncode, found.stderr) == (0, "")
    assert secure.node.url in headgate(secure.node.home, "doctor").stdout


def test_commands_elsewhere_need_the_authority_and_send_nothing_without_it(secure: Secure, tmp_path: Path) -> None:
    given = ("nodes", "list", "--url", secure.node.url, "--token", secure.node.token)
    refused = headgate(tmp_path, *given)
    assert refused.returncode == 1
    assert refused.stderr.endswith(" (name the certificate authority of the node with --ca or HEADGATE_CA)\n")
    assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
    assert headgate(tmp_path, *given, "--ca", str(secure.authority.file)).returncode == 0
    assert headgate(tmp_path, *given, HEADGATE_CA=str(secure.authority.file)).returncode == 0
    for file, said in (("none.pem", "cannot be read"), ("empty.pem", "has no certificate")):
        (tmp_path / "empty.pem").write_text("")
        found = headgate(tmp_path, *given, "--ca", file)
        assert (found.returncode, found.stderr.count("\n")) == (3, 1)
        assert said in found.stderr


def test_a_home_trusts_the_certificate_of_its_node_and_none_that_the_same_authority_signed(
    secure: Secure, tmp_path: Path
) -> None:
    from headgate.cli.trust import pinned

    other = secure.authority.sign("other", "127.0.0.1")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(other.cert.read_bytes() + secure.authority.file.read_bytes())
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(secure.node.url, verify=pinned(str(chain)))
    assert httpx.get(f"{secure.node.url}/healthz", verify=pinned(str(secure.pair.cert))).is_success


# Programs.


async def test_programs_push_and_take_turns_over_tls(secure: Secure) -> None:
    body = {"datasources": {"pushed": {"source": {"type": "push"}, "sink": BLACKHOLE}}}
    headers = {"Authorization": f"Bearer {secure.node.token}"}
    httpx.post(f"{secure.node.url}/api/apply", json=body, headers=headers, verify=secure.trust).raise_for_status()
    async with asyncio.timeout(LONG_S):
        async with PushClient(
            secure.node.url, datasource="pushed", token=secure.node.token, tls=secure.trust
        ) as client:
            stream = await client.stream("a")
            for number in range(100):
                await stream.send(number, {"n": number})
        async with Consumer(
            secure.node.url, stream="s", group="g", token=secure.node.token, tls=secure.trust
        ) as consumer:
            assert (await consumer.turn()).epoch > 0


# The files.


def test_a_certificate_that_is_replaced_is_used_for_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for who names no host, as with an address; and one that does not fit changes nothing."""
    monkeypatch.setattr(tls, "LOOK_S", 0.01)
    authority = Authority(tmp_path)
    first, second = authority.sign("first", "127.0.0.1"), authority.sign("second", "127.0.0.1")
    used = Pair(tmp_path / "used.pem", tmp_path / "used.key")

    def install(cert: Path, key: Path) -> None:
        for source, target in ((key, used.key), (cert, used.cert)):
            (tmp_path / "new").write_bytes(source.read_bytes())
            (tmp_path / "new").replace(target)

    async def shown(port: int) -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(found)

    async def run() -> None:
        install(first.cert, first.key)
        certificate = tls.Certificate(used.cert, used.key)
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0, ssl=certificate.context)
        port = server.sockets[0].getsockname()[1]
        watching = asyncio.create_task(certificate.watch())
        before = await shown(port)
        install(second.cert, first.key)
        await asyncio.sleep(0.1)
        assert await shown(port) == before
        install(second.cert, second.key)
        async with asyncio.timeout(LONG_S):
            while await shown(port) == before:
                await asyncio.sleep(0.01)
        watching.cancel()
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("none.pem", "a.key", "none.pem cannot be read: No such file or directory"),
        ("a.pem", "none.key", "none.key cannot be read: No such file or directory"),
        (".", "a.key", "cannot be read: Is a directory"),
        ("a.pem", "b.key", "b.key does not belong to the certificate"),
        ("c.pem", "c.key", "c.key is encrypted with a passphrase"),
        ("a.key", "a.key", "are not a certificate and its key in PEM"),
        ("a.pem", "noise", "are not a certificate and its key in PEM"),
        ("a.pem", None, "are not a certificate and its key in PEM"),
        (None, "a.key", "a key without a certificate"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_one_line(
    tmp_path: Path, cert: str | None, key: str | None, said: str
) -> None:
    authority = Authority(tmp_path)
    for name in ("a", "b"):
        authority.sign(name, "127.0.0.1")
    authority.sign("c", "127.0.0.1", passphrase=b"secret")
    (tmp_path / "noise").write_text("noise")
    settings = Settings(tls_cert=cert and tmp_path / cert, tls_key=key and tmp_path / key)
    with pytest.raises(ConfigError) as refused:
        tls.certificate_of(settings)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


def test_a_node_whose_certificate_cannot_be_used_does_not_start(tmp_path: Path) -> None:
    found = headgate(tmp_path, "up", "--tls-cert", "none.pem", HEADGATE_DATABASE="postgresql://x/y")
    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr == f"headgate: {tmp_path / 'none.pem'} cannot be read: No such file or directory (--tls-cert)\n"


def test_key_and_certificate_may_be_one_file(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("both", "127.0.0.1")
    pair.cert.write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    assert tls.certificate_of(Settings(tls_cert=pair.cert)) is not None


def test_each_process_of_a_family_speaks_https(databases: Databases, tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("node", "127.0.0.1")
    flags = ("--processes", "2", "--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    node = NodeProcess.start(tmp_path / "home", database=databases.make(), flags=flags)
    try:
        assert node.url.startswith("https://")
        wait_until(lambda: headgate(node.home, "nodes", "list").stdout.count("https://") == 2)
    finally:
        node.end()
