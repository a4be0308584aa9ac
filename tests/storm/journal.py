"""What happened in a storm, line by line in a file; and what was wrong."""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path


class Journal:
    """Lines with the seconds since the storm began."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "storm.log"
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self._file = self.path.open("w", buffering=1)
        self._began_at_s = time.monotonic()
        self._taken: list[tuple[logging.Logger, logging.Handler]] = []

    def begin(self) -> None:
        """Count the seconds from now."""
        self._began_at_s = time.monotonic()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_at_s

    def note(self, text: str) -> None:
        """For those who read the file."""
        self._file.write(f"{time.strftime('%H:%M:%S')} {self.now_s:8.1f} {text}\n")

    def take_over(self, name: str) -> None:
        """Have what this logger says in the file, and nowhere else."""
        logger, lines = logging.getLogger(name), _Lines(self)
        logger.propagate = False
        logger.addHandler(lines)
        self._taken.append((logger, lines))

    def count(self, what: str) -> None:
        """One more."""
        self.counts[what] += 1

    def fail(self, text: str) -> None:
        """For the verdict."""
        self.wrong.append(text)
        self.note(f"WRONG: {text}")

    def close(self) -> None:
        """No more lines. The loggers are as they were, because other tests of this process use them, too."""
        for logger, lines in self._taken:
            logger.removeHandler(lines)
            logger.propagate = True
        self._file.close()


class _Lines(logging.Handler):
    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.note(record.getMessage())
