"""TLS of the node itself: a certificate and its key, from files that are read again when they change.

Each handshake chooses the newest certificate, so connections that are open stay as they are. Files that were replaced
by something that cannot be used are named in the log, and the last good certificate stays.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import NoReturn

import structlog

from headgate.config import Settings
from headgate.errors import ConfigError

LOOK_S = 5.0

log = structlog.get_logger()


class _Encrypted(Exception):
    """The key has a passphrase, and nobody is here to type it."""


class Certificate:
    """What a node shows to those who connect. Raises ConfigError if it cannot be used."""

    def __init__(self, file: Path, key: Path | None) -> None:
        self._file = file
        self._key = key
        self._seen = self._stamps()
        self._newest = self._read()
        self.context = self._read()  # The one that listens.
        self.context.sni_callback = self._choose

    async def watch(self) -> None:
        """Read the files again whenever they change, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if (seen := self._stamps()) != self._seen:
                self._seen = seen
                try:
                    self._newest = await asyncio.to_thread(self._read)
                    log.info("the certificate was read again", file=str(self._file))
                except ConfigError as error:
                    log.warning("the certificate stays as it was", error=error.message)

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _stamps(self) -> list[tuple[int, int] | None]:
        return [_stamp(file) for file in (self._file, self._key) if file is not None]

    def _read(self) -> ssl.SSLContext:
        key = self._key or self._file
        for file, setting in ((self._file, "--tls-cert"), (key, "--tls-key")):
            _check_readable(file, setting)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._file, key, password=_ask_nobody)
        except _Encrypted:
            hint = f"write it without one: openssl pkey -in {key} -out FILE"
            raise ConfigError(f"the key {key} is encrypted with a passphrase", hint=hint) from None
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                message = f"the key {key} does not belong to the certificate {self._file}"
                raise ConfigError(message, hint="--tls-cert and --tls-key") from None
            message = f"{self._file} and {key} are not a certificate and its key in PEM"
            raise ConfigError(f"{message}: {error.reason or 'nothing is in them'}", hint="--tls-cert") from None
        return context


def certificate_of(settings: Settings) -> Certificate | None:
    """The certificate of the settings, if there is one."""
    if settings.tls_cert is not None:
        return Certificate(settings.tls_cert.absolute(), settings.tls_key and settings.tls_key.absolute())
    if settings.tls_key is not None:
        raise ConfigError("--tls-key is a key without a certificate", hint="--tls-cert, or HEADGATE_TLS_CERT")
    return None


def _ask_nobody() -> NoReturn:
    """Without this, OpenSSL would ask on the terminal and wait."""
    raise _Encrypted


def _check_readable(file: Path, setting: str) -> None:
    try:
        with file.open("rb") as content:
            content.read(1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint=setting) from None


def _stamp(file: Path) -> tuple[int, int] | None:
    """What changes when a file, or what a link leads to, is replaced."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
