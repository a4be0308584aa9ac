"""Short paths to folders: the same each time, and nobody else's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.store import short_paths
from headgate.store.short_paths import forget, short_path

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what is somebody else's")
OTHER = 65534


@pytest.fixture
def everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as `/tmp` is."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(short_paths, "EVERYBODYS", folder)
    return folder


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def room(everybodys: Path) -> Path:
    return everybodys / f"headgate-{os.geteuid()}"


def test_a_folder_has_the_same_short_path_each_time_and_another_has_another(
    everybodys: Path, tmp_path: Path, held: ExitStack
) -> None:
    first = short_path(tmp_path, held)
    assert first is not None
    assert first.resolve() == tmp_path
    assert short_path(tmp_path, held) == first
    assert short_path(everybodys, held) not in (first, None)
    forget(tmp_path)
    assert not first.is_symlink()
    assert short_path(tmp_path, held) == first
    assert room(everybodys).stat().st_mode & 0o777 == 0o700
    assert sorted(path.resolve() for path in room(everybodys).iterdir()) == sorted([tmp_path, everybodys])


def test_a_link_that_leads_elsewhere_is_put_right(everybodys: Path, tmp_path: Path, held: ExitStack) -> None:
    first = short_path(tmp_path, held)
    assert first is not None
    first.unlink()
    first.symlink_to("/")
    assert short_path(tmp_path, held) == first
    assert first.resolve() == tmp_path


def test_what_nobody_has_made_is_not_made_to_be_forgotten(everybodys: Path, tmp_path: Path) -> None:
    forget(tmp_path)
    assert list(everybodys.iterdir()) == []


def is_open_to_others(everybodys: Path) -> None:
    room(everybodys).mkdir()
    room(everybodys).chmod(0o770)


def is_a_link(everybodys: Path) -> None:
    target = everybodys.parent / "somewhere"
    target.mkdir(mode=0o700)
    room(everybodys).symlink_to(target)


def is_a_file(everybodys: Path) -> None:
    room(everybodys).write_text("")


def lets_others_rename(everybodys: Path) -> None:
    everybodys.chmod(0o777)


@pytest.mark.parametrize("trouble", [is_open_to_others, is_a_link, is_a_file, lets_others_rename])
def test_there_is_none_where_somebody_else_could_meddle(
    everybodys: Path, tmp_path: Path, held: ExitStack, trouble: Callable[[Path], None]
) -> None:
    trouble(everybodys)
    assert short_path(tmp_path, held) is None


@needs_root
@pytest.mark.parametrize("whose", [room, lambda everybodys: everybodys])
def test_there_is_none_in_a_folder_of_somebody_else(
    everybodys: Path, tmp_path: Path, held: ExitStack, whose: Callable[[Path], Path]
) -> None:
    room(everybodys).mkdir(mode=0o700)
    os.chown(whose(everybodys), OTHER, OTHER)
    assert short_path(tmp_path, held) is None
