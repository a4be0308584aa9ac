"""The sign: shows the beat that this node's event loop is alive, and notices how late the loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.clock import boot_s
from headgate.runtime.cluster.beat import Beat

SIGN_S = 0.25


class LoopSign:
    """The main loop's signs of life."""

    delay_s = 0.0  # How late the loop was the last time.

    async def run(self, beat: Callable[[], Beat | None]) -> None:
        """Sign until cancelled; another incarnation has another beat."""
        while True:
            due_s = boot_s() + SIGN_S
            await asyncio.sleep(SIGN_S)
            self.delay_s = max(0.0, boot_s() - due_s)
            present = beat()
            if present is not None:
                present.sign()
