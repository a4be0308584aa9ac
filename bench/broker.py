"""The RabbitMQ that benchmarks use, installed if that may be done."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from headgate.testing.rabbitmq import RabbitMq, is_installed

PACKAGES = Path(__file__).parent.parent / "scripts/packages"


def missing() -> str | None:
    """Why there is no RabbitMQ to compare with; installs it if it may."""
    try:
        import pika  # noqa: F401
    except ImportError:
        return "the client library is missing: pip install 'headgate[bench]'"
    if not is_installed():
        subprocess.run([PACKAGES, "rabbitmq-server"], check=False)
    return None if is_installed() else "rabbitmq-server is not installed, and only root can install it"


@contextlib.contextmanager
def broker() -> Iterator[int]:
    """Runs while in use; its port."""
    with RabbitMq(has_streams=False) as server:
        yield server.port
