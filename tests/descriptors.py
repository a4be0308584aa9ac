"""A process that has many files open, as a node with thousands of streams has."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

MANY = 1100  # `select` knows numbers up to 1023.


@contextmanager
def many_open() -> Iterator[None]:
    """What is opened from now on has a number beyond what `select` knows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * MANY:
        pytest.skip("the system allows few open files")
    opened: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * MANY), hard))
    try:
        while len(opened) < MANY:
            opened.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
