"""Certificates that the URL of a broker names: `?ssl_ca_certs=FILE`, with a certificate of our own where one is asked
for."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from urllib.parse import parse_qsl

from headgate.connectors.guard import Guard, OutOfReach
from headgate.errors import Cause, ConnectorError
from headgate.text import one_line

FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def check_files(query: str) -> None:
    """ValueError: the query of a URL names something else."""
    if any(name not in FILES for name, _ in parse_qsl(query, keep_blank_values=True)):
        raise ValueError(f"has a parameter that is not known; known: {', '.join(FILES)}")


def context_of(
    files: Iterable[tuple[str, str]], guard: Guard, server: str, names: tuple[str, str, str] = FILES
) -> ssl.SSLContext:
    """For a connection to this server, whose certificate is checked, by the system's authorities or by the file of them
    that is named. `names` are those of the three files, as URLs of this kind of server have them."""
    found = {name: guard.path(path) for name, path in files if name in names}
    authority, certificate, key = names
    try:
        context = ssl.create_default_context(cafile=found.get(authority))
        if certificate in found:
            context.load_cert_chain(found[certificate], found.get(key))
    except OutOfReach:
        raise
    except OSError as error:
        why = f"{server}: a file of certificates cannot be used: {one_line(str(error), 200)}"
        raise ConnectorError(why, cause=Cause.CONFIG) from None
    return context


def untrusted(error: ssl.SSLCertVerificationError, server: str, names: tuple[str, str, str] = FILES) -> ConnectorError:
    """What to say of a certificate that does not hold."""
    why = f"{server}: its certificate is not trusted: {error.verify_message}"
    return ConnectorError(why, cause=Cause.CONFIG, hint=f"name the CA with ?{names[0]}=FILE")
