"""A MariaDB server of a test's own: Debian's package, in a temporary folder, with no mercy for durability.

Below it, what tests of the storage share: sessions that are closed, and a copy of a table.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pymysql
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from headgate.connectors.api.bulk import PLAIN, Bound, Job, Language, Piece, Pieces, Range, Table
from headgate.connectors.mysql.reader import MysqlReader
from headgate.connectors.mysql.writer import MysqlWriter
from headgate.testing.servers import free_port

DUMP = UUID("aaaaaaaa-0000-0000-0000-000000000001")

_numbers = itertools.count()


def program(name: str) -> str | None:
    """Where a program of the server is; Debian keeps some where only root looks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def make_certificate(folder: Path) -> None:
    """A certificate that `localhost` has given itself, `server.pem`, and its key, `server.key`."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").write_bytes(secret)


class MariaDb:
    """A running server. Its root has no password, and every test may have a database."""

    def __init__(self, *settings: str) -> None:
        if program("mariadbd") is None or program("mariadb-install-db") is None:
            pytest.skip("mariadb-server is not installed (make packages)")
        self.home = Path(tempfile.mkdtemp(prefix="hgmy"))
        self.socket = str(self.home / "s")
        self.port = free_port()
        # A server that starts removes the temporary tables of all others that share its folder for them.
        self._environment = {**os.environ, "TMPDIR": str(self.home)}
        user = ["--user=root"] if os.getuid() == 0 else []
        data = f"--datadir={self.home / 'data'}"
        subprocess.run(
            [
                str(program("mariadb-install-db")),
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                data,
                *user,
            ],
            check=True,
            capture_output=True,
            env=self._environment,
        )
        self._command = [
            str(program("mariadbd")),
            "--no-defaults",
            data,
            *user,
            f"--socket={self.socket}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--character-set-server=utf8mb4",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=64M",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-doublewrite=0",
            "--innodb-fast-shutdown=2",
            "--performance-schema=0",
            "--skip-log-bin",
            "--local-infile=1",
            "--max-allowed-packet=64M",
            *settings,
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Run the server, and wait until it answers."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True, env=self._environment
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                self.connect().close()
                return
            except pymysql.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(self._last_words()) from None
                time.sleep(0.05)

    def _last_words(self) -> str:
        return (self.home / "log").read_text()[-2000:]

    def connect(self, database: str | None = None) -> Any:
        """A connection of root, which commits each statement."""
        return pymysql.connect(
            user="root",
            unix_socket=self.socket,
            database=database,
            autocommit=True,
            ssl_disabled=True,
            charset="utf8mb4",
        )

    def url(self, database: str, *options: str) -> str:
        """The URL of a database, through the socket."""
        more = "".join(f"&{option}" for option in options)
        return f"mysql://root@localhost/{database}?unix_socket={quote(self.socket)}{more}"

    def kill(self) -> None:
        """End the server as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the server, and remove its folder."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    @contextmanager
    def database(self) -> Iterator[Database]:
        """A new database. A server that has crashed since the last one (MariaDB 10.11 sometimes does) is run again."""
        if self.process is not None and self.process.poll() is not None:
            warnings.warn(f"mariadbd ended with {self.process.returncode}: {self._last_words()}", stacklevel=2)
            self.start()
        name = f"t{next(_numbers)}"
        connection = self.connect()
        connection.cursor().execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        connection.select_db(name)
        connection.cursor().execute("SET time_zone = '+00:00'")
        made = Database(self, name, connection)
        try:
            yield made
        finally:
            made.execute(f"DROP DATABASE {name}")
            made.connection.close()


class Database:
    """One database, with a connection in UTC."""

    def __init__(self, server: MariaDb, name: str, connection: Any) -> None:
        self.server = server
        self.name = name
        self.connection = connection

    def url(self, *options: str) -> str:
        """Its URL."""
        return self.server.url(self.name, *options)

    def execute(self, *statements: str) -> None:
        """Do this, one after another."""
        for statement in statements:
            with self.connection.cursor() as cursor:
                cursor.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows that a query gives."""
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def value(self, query: str) -> Any:
        """The one value that a query gives."""
        return self.rows(query)[0][0]

    def tables(self) -> set[str]:
        """The names of all tables."""
        return {row[0] for row in self.rows("SHOW TABLES")}


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Any]:
    reader = MysqlReader(url)
    yield reader
    await reader.close()


@asynccontextmanager
async def writing(url: str) -> AsyncIterator[Any]:
    writer = MysqlWriter(url)
    yield writer
    await writer.close()


async def of(*parts: bytes, rows: int = 0, error: Exception | None = None) -> Pieces:
    for part in parts:
        yield Piece(part, len(part), rows)
    if error is not None:
        raise error


async def read(reader: Any, table: Table, lo: Bound | None, hi: Bound, csv: Any = PLAIN) -> bytes:
    return b"".join([piece.data async for piece in reader.query(table, Range(lo, hi), Language.CSV, csv)])


async def read_all(url: str, table: str = "t", csv: Any = PLAIN) -> bytes:
    async with reading(url) as reader:
        found = await reader.describe(table)
        return await read(reader, found, None, await reader.top(found), csv)


async def copied(url: str, source: str, target: str, rows: int = 1000, **options: Any) -> Job:
    """Copy a table within the server, chunk after chunk."""
    async with reading(url) as reader, writing(url) as writer:
        table = await reader.describe(source)
        job = Job(options.pop("dump", DUMP), table, target, **options)
        into = await writer.prepare(job)
        top, at = await reader.top(table), None
        while at != top:
            hi = await reader.cut(table, at, top, rows)
            pieces = reader.query(table, Range(at, hi), Language.CSV, writer.csv)
            await writer.write(job, into, Range(at, hi), Language.CSV, pieces)
            at = hi
        await writer.finish(job)
        return job


def csv_rows(data: bytes) -> list[list[str]]:
    """Whole records of CSV as lists of text."""
    return list(csv.reader(io.StringIO(data.decode("utf-8"), newline="")))
