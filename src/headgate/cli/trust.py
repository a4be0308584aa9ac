"""Which certificates commands accept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headgate.errors import ConfigError

if TYPE_CHECKING:
    import ssl

_END = "-----END CERTIFICATE-----"


def trusting(file: str) -> ssl.SSLContext:
    """Certificates that this authority has signed, for the name that was asked for."""
    import ssl

    try:
        return ssl.create_default_context(cafile=file)
    except ssl.SSLError:
        raise ConfigError(f"{file} has no certificate in PEM", hint="--ca, or HEADGATE_CA") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint="--ca, or HEADGATE_CA") from None


def pinned(file: str) -> ssl.SSLContext:
    """The first certificate of this file and no other, whatever names are in it. What follows it has signed others."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        first, end, _ = Path(file).read_text("ascii").partition(_END)
        context.load_verify_locations(cadata=first + end)
    except (OSError, ValueError) as error:  # An SSLError is an OSError.
        raise ConfigError(f"{file}, the certificate of the node, cannot be read: {error}", hint="--ca") from None
    return context
