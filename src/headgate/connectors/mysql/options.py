"""What the URL of a MySQL or MariaDB server says: where it is, its TLS, and how its types are to be read."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from headgate.connectors.urls import redacted
from headgate.errors import ConfigError

_SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
_OPTIONS = {
    "unix_socket",
    "charset",
    "connect_timeout",
    "sslmode",
    "ssl_ca",
    "ssl_cert",
    "ssl_key",
    "tinyint1",
    "zero_dates",
}


class Where:
    """What a URL says: where the server is, and how its types are to be read."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.name = redacted(url)
        self._refuse_unknown(options)
        self.database = unquote(parts.path.lstrip("/"))
        if not self.database:
            raise ConfigError(f"{self.name} names no database", hint="mysql://user:password@host/database")
        self.is_bool = options.get("tinyint1") == "bool"
        self.null_dates = options.get("zero_dates") == "null"
        try:
            port = parts.port or 3306
            timeout_s = float(options.get("connect_timeout", 10))
        except ValueError:
            raise ConfigError(f"{self.name}: the port and connect_timeout must be numbers") from None
        self.arguments: dict[str, Any] = {
            "host": parts.hostname or "127.0.0.1",
            "port": port,
            "user": unquote(parts.username or "root"),
            "password": unquote(parts.password or "").encode(),
            "database": self.database,
            "unix_socket": options.get("unix_socket"),
            "connect_timeout": timeout_s,
            "charset": "utf8mb4",
            "program_name": "headgate",
            **self._secured(options),
        }

    def _refuse_unknown(self, options: dict[str, str]) -> None:
        for name, value in options.items():
            if name not in _OPTIONS:
                raise ConfigError(f"{self.name}: option {name!r} does not exist", hint=f"one of {', '.join(_OPTIONS)}")
            allowed = {"charset": ("utf8mb4",), "tinyint1": ("bool", "int"), "zero_dates": ("null", "refuse")}
            allowed["sslmode"] = _SSL_MODES
            if name in allowed and value not in allowed[name]:
                raise ConfigError(
                    f"{self.name}: {name}={value} is not allowed", hint=f"one of {', '.join(allowed[name])}"
                )

    def _secured(self, options: dict[str, str]) -> dict[str, Any]:
        authority = options.get("ssl_ca")
        is_local = "unix_socket" in options
        mode = options.get("sslmode") or ("verify-full" if authority else "disable" if is_local else "prefer")
        if mode == "disable":
            return {"ssl_disabled": True}
        if mode == "prefer":
            return {}
        try:
            context = ssl.create_default_context(cafile=authority)
            context.check_hostname = mode == "verify-full"
            context.verify_mode = ssl.CERT_NONE if mode == "require" else ssl.CERT_REQUIRED
            if "ssl_cert" in options:
                context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
        except OSError as error:
            raise ConfigError(f"{self.name}: the certificates cannot be read: {error}") from None
        return {"ssl": context}
