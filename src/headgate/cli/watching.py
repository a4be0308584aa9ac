"""Looking again and again, also while the node is away for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from headgate.cli.client import Unreachable
from headgate.cli.output import complain
from headgate.errors import StoreError

EVERY_S = 2.0

T = TypeVar("T")


def watched(look: Callable[[], T], every_s: float = EVERY_S) -> Iterator[T]:
    """What there is to see, forever. The first look must succeed; later a node may be away, which is said once."""
    yield look()
    is_away = False
    while True:
        time.sleep(every_s)
        try:
            found = look()
        except (Unreachable, StoreError) as error:
            if not is_away:
                complain(f"headgate: {error.message}; waiting for it")
            is_away = True
            continue
        is_away = False
        yield found
